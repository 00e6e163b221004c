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

from ktbench.config.files import OWN, read_yaml
from ktbench.config.keys import check_ablation
from ktbench.config.lists import key_of
from ktbench.config.machine import BESIDE_PRESETS
from ktbench.resources import OUTSIDE_CONF, data_folder, group_folder, option_files
from ktbench.resources import is_file as is_there
from ktbench.spec.suite import SuiteSpec

NO_SUITE = "null"  # takes the suite of an ablation away, which is then a sweep
_FILE = "FILE.yaml"  # stands in lists of allowed values for a description that does not ship
# Folders of `conf` that are not groups.
_NO_GROUPS = ("calibration",)
# What a suite leaves open can be overridden all the same.
_SUITE = {field.name: field.default for field in fields(SuiteSpec) if field.default is not MISSING}


def ablation_names() -> list[str]:
    """Names accepted by `+ablation=`."""
    return [*option_files("ablation")]


def suite_names() -> list[str]:
    """Names accepted by `+suite=`."""
    return [*option_files("suite")]


def group_options() -> dict[str, list[str]]:
    """The options of every group by its name."""
    conf = data_folder("conf")
    folders = [path for path in sorted(conf.iterdir()) if path.is_dir() and path.name not in _NO_GROUPS]
    groups = {folder.name: [*option_files(folder.name)] for folder in folders}
    groups |= {"ablation": [*ablation_names(), _FILE], "suite": [*suite_names(), NO_SUITE, _FILE]}
    return groups | {"machine": [*groups["machine"], *BESIDE_PRESETS]}


def read_options(words: Sequence[str]) -> None:
    """Read the options that overrides name, and those that these name as defaults.

    Ablations and suites are registered for Hydra, which reads the others itself. Raises ValueError in one line that
    names the file for what cannot be read.
    """
    for word in words:
        _read_named(key_of(word), word.partition("=")[2])


def _read_named(group: str, name: str) -> None:
    path = group_folder(group) / f"{name}.yaml"
    if is_there(path):
        _read_option(group, name, path)


@cache
def _read_option(group: str, name: str, path: Path) -> None:
    where = f"{group}={name}: {path}"
    content = read_yaml(path, where, "a configuration")
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping")
    for other, option in _defaults(content.get("defaults")):
        _read_named(other, option)
    if group in OUTSIDE_CONF:
        _register(group, name, content, where)


REGISTERED = "lm_eval/"  # before the name of a task of lm-eval, which is a suite of its own


def is_registered_task(value: str) -> bool:
    """Whether the value of `suite` names a task of lm-eval."""
    return value.startswith(REGISTERED) and value != REGISTERED


def is_file(value: str) -> bool:
    """Whether a value names a file of the user's own instead of an option."""
    return value.strip("'\"").endswith(".yaml")


def register_own_ablations(words: Sequence[str]) -> list[str]:
    """The words, with a registered option in place of the file of an ablation.

    Raises ValueError in one line that names the file, for what is no configuration, and for the name of a shipped
    ablation above other content.
    """
    return [_with_own_ablation(word) if key_of(word) == "ablation" else word for word in words]


def _with_own_ablation(word: str) -> str:
    value = word.partition("=")[2]
    if not is_file(value):
        return word
    file = value.strip("'\"")
    where = f"ablation={file}"
    content = read_yaml(file, where, "an ablation")
    if not isinstance(content, dict) or not isinstance(content.get("sweep"), dict):
        raise ValueError(f"{where}: must be a mapping with the key sweep, which names what is varied")
    name = str(content["sweep"].get("name"))
    shipped = option_files("ablation").get(name)
    if shipped and read_yaml(shipped, str(shipped), "an ablation") != content:
        raise ValueError(f"{where}: {name} is a shipped ablation with other content, change the name")
    for group, option in _defaults(content.get("defaults")):
        _read_named(group, option)
    _register("ablation", OWN, content, where)
    return f"+ablation={OWN}"


def register_suite(name: str, content: dict[str, Any], where: str) -> None:
    """Make a suite an option. Raises ValueError, headed by `where`, for what is no configuration."""
    _register("suite", name, content, where)


def _register(group: str, name: str, content: dict[str, Any], where: str) -> None:
    if group == "ablation":
        check_ablation(content, where)
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
