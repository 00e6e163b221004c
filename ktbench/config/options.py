"""Options of the configuration's groups: presets, ablations and suites, each read when a request names it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ktbench.config.files import read_yaml
from ktbench.config.keys import check_ablation
from ktbench.config.lists import key_of, parsed
from ktbench.config.machine import BESIDE_PRESETS, check_constants
from ktbench.resources import OUTSIDE_CONF, data_folder, files_below, group_folder, option_files, read_text
from ktbench.resources import is_file as is_there
from ktbench.spec.errors import RequestError
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.yaml_text import MOST_BYTES

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


def group_options(words: Sequence[str] = ()) -> dict[str, list[str]]:
    """The options of every group by its name, with those of the folders that `hydra.searchpath` of the words names."""
    conf = data_folder("conf")
    folders = [path for path in sorted(conf.iterdir()) if path.is_dir() and path.name not in _NO_GROUPS]
    groups = {folder.name: [*option_files(folder.name)] for folder in folders}
    groups |= {"ablation": ablation_names(), "suite": suite_names()}
    for folder in own_folders(words):
        for group in {*groups, *(key for word in words if _A_GROUP.fullmatch(key := key_of(word)))}:
            if found := files_below(folder / group):
                groups[group] = sorted({*groups.get(group, ()), *found})
    beside = {"ablation": (_FILE,), "suite": (NO_SUITE, _FILE), "machine": BESIDE_PRESETS}
    return {group: [*names, *beside.get(group, ())] for group, names in groups.items()}


SEARCHPATH = "hydra.searchpath"
_A_GROUP = re.compile(r"\w{1,99}(/\w{1,99})*")
_FILE_SCHEME, _GLOBAL = "file://", re.compile(r"#\s*@package\s+_global_\s*$", re.MULTILINE)


def own_folders(words: Sequence[str]) -> tuple[Path, ...]:
    """The folders of groups of the user's own, in the order of `hydra.searchpath=[FOLDER,...]`.

    Raises RequestError for what is no list of folders.
    """
    named = [word for word in words if key_of(word) == SEARCHPATH]
    if not named:
        return ()
    if len(named) > 1:
        raise RequestError(f"{named[1]}: is set twice, list all folders in one: {SEARCHPATH}=[A,B]")
    folders = parsed(named[0]).value()
    if not isinstance(folders, list) or not all(isinstance(one, str) for one in folders):
        raise RequestError(f"{named[0]}: must be a list of folders: {SEARCHPATH}=[FOLDER]")
    found = [Path(one.removeprefix(_FILE_SCHEME)) for one in folders]
    if wrong := next((one for one in found if not one.is_dir()), None):
        raise RequestError(f"{SEARCHPATH}: {wrong} is no folder; its folders model, machine, … hold the options")
    return tuple(found)


def read_options(words: Sequence[str]) -> None:
    """Read the options that overrides name, and those that these name as defaults.

    Ablations and suites that ship are registered for Hydra, which reads the others itself. Raises ValueError in one
    line that names the file for what cannot be read, and for a file of the user's own with the name of one that ships.
    """
    folders = own_folders(words)
    for word in words:
        read_named(key_of(word), word.partition("=")[2], folders)


def read_named(group: str, name: str, folders: tuple[Path, ...]) -> None:
    """Read one option, shipped or in one of the `folders`. Raises ValueError as `read_options`."""
    path = group_folder(group) / f"{name}.yaml"
    own = next((file for folder in folders if is_there(file := folder / group / f"{name}.yaml")), None)
    if own is not None and is_there(path):
        raise ValueError(f"{group}={name}: {own} has the name of an option that ships, change the name")
    if own is not None:
        _read_own(group, name, own, folders)
    elif is_there(path):
        _read_option(group, name, path, folders)


def _read_own(group: str, name: str, path: Path, folders: tuple[Path, ...]) -> None:
    where = f"{group}={name}: {path}"
    content = _mapping(path, where)
    if group == "ablation":
        if not _GLOBAL.search(read_text(path, where, MOST_BYTES)):
            raise ValueError(f"{where}: sets keys of all groups, begin it with the line # @package _global_")
        check_ablation(content, where)
    elif group == "machine":
        check_constants(content, where)
    for other, option in defaults_of(content.get("defaults")):
        read_named(other, option, folders)


def _mapping(path: Path, where: str) -> dict[str, Any]:
    content = read_yaml(path, where, "a configuration")
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping")
    return content


@cache
def _read_option(group: str, name: str, path: Path, folders: tuple[Path, ...]) -> None:
    where = f"{group}={name}: {path}"
    content = _mapping(path, where)
    for other, option in defaults_of(content.get("defaults")):
        read_named(other, option, folders)
    if group in OUTSIDE_CONF:
        register(group, name, content, where)


REGISTERED = "lm_eval/"  # before the name of a task of lm-eval, which is a suite of its own


def is_registered_task(value: str) -> bool:
    """Whether the value of `suite` names a task of lm-eval."""
    return value.startswith(REGISTERED) and value != REGISTERED


def is_file(value: str) -> bool:
    """Whether a value names a file of the user's own instead of an option."""
    return value.strip("'\"").endswith(".yaml")


def register(group: str, name: str, content: dict[str, Any], where: str) -> None:
    """Make content an option of a group. Raises ValueError, headed by `where`, for what is no configuration."""
    if group == "ablation":
        check_ablation(content, where)
    *folders, option = name.split("/")
    package = "_global_" if group == "ablation" else group
    try:
        node = OmegaConf.create(_SUITE | content if group == "suite" else content)
    except OmegaConfBaseException as error:
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from None
    ConfigStore.instance().store(group="/".join([group, *folders]), name=option, node=node, package=package)


def defaults_of(entries: Any) -> Iterator[tuple[str, str]]:
    """Group and option of each entry `override /GROUP: OPTION`; other entries are Hydra's to judge."""
    for entry in entries if isinstance(entries, Iterable) and not isinstance(entries, str) else ():
        for key, option in entry.items() if isinstance(entry, dict) else ():
            yield str(key).removeprefix("override ").removeprefix("/"), str(option)
