"""Options of the configuration's groups: presets, ablations and suites, each read when a request names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ktbench.config.files import read_yaml
from ktbench.config.lists import key_of
from ktbench.config.machine import BESIDE_PRESETS
from ktbench.resources import data_folder
from ktbench.spec.suite import SuiteSpec

NO_SUITE = "null"  # takes the suite of an ablation away, which is then a sweep
_FILE = "FILE.yaml"  # stands in lists of allowed values for a description that does not ship
# Groups whose options are files outside `conf`, and the folders that have them.
_OUTSIDE = {"ablation": "ablations", "suite": "evals"}
# Folders of `conf` that are not groups.
_NO_GROUPS = ("calibration",)
# What a suite leaves open can be overridden all the same.
_SUITE = {field.name: field.default for field in fields(SuiteSpec) if field.default is not MISSING}


def ablation_names() -> list[str]:
    """Names accepted by `+ablation=`."""
    folder = data_folder("ablations")
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def suite_names() -> list[str]:
    """Names accepted by `+suite=`."""
    return _options(data_folder("evals"))


def group_options() -> dict[str, list[str]]:
    """The options of every group by its name."""
    conf = data_folder("conf")
    folders = [path for path in sorted(conf.iterdir()) if path.is_dir() and path.name not in _NO_GROUPS]
    groups = {folder.name: _options(folder) for folder in folders}
    groups |= {"ablation": ablation_names(), "suite": [*suite_names(), NO_SUITE, _FILE]}
    return groups | {"machine": [*groups["machine"], *BESIDE_PRESETS]}


def _options(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_options(words: Sequence[str]) -> None:
    """Read the options that overrides name, and those that these name as defaults.

    Ablations and suites are registered for Hydra, which reads the others itself. Raises ValueError in one line that
    names the file for what cannot be read.
    """
    for word in words:
        _read_named(key_of(word), word.partition("=")[2])


def _read_named(group: str, name: str) -> None:
    folder = data_folder(_OUTSIDE[group]) if group in _OUTSIDE else data_folder("conf") / group
    if (folder / f"{name}.yaml").is_file():
        _read_option(group, name, folder / f"{name}.yaml")


@cache
def _read_option(group: str, name: str, path: Path) -> None:
    where = f"{group}={name}: {path}"
    content = read_yaml(path, where, "a configuration")
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping")
    for other, option in _defaults(content.get("defaults")):
        _read_named(other, option)
    if group in _OUTSIDE:
        _register(group, name, content, where)


def register_suite(name: str, content: dict[str, Any], where: str) -> None:
    """Make a suite an option. Raises ValueError, headed by `where`, for what is no configuration."""
    _register("suite", name, content, where)


def _register(group: str, name: str, content: dict[str, Any], where: str) -> None:
    *folders, option = name.split("/")
    package = "_global_" if group == "ablation" else group
    try:
        node = OmegaConf.create(content if group == "ablation" else _SUITE | content)
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from None
    ConfigStore.instance().store(group="/".join([group, *folders]), name=option, node=node, package=package)


def _defaults(entries: Any) -> Iterator[tuple[str, str]]:
    """Group and option of each entry `override /GROUP: OPTION`; other entries are Hydra's to judge."""
    for entry in entries if isinstance(entries, Iterable) and not isinstance(entries, str) else ():
        for key, option in entry.items() if isinstance(entry, dict) else ():
            yield str(key).removeprefix("override ").removeprefix("/"), str(option)
