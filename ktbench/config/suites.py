"""Suites: those that ship, and one that a file describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from ktbench.config.files import check_keys, parse_yaml, read_text
from ktbench.config.lists import key_of
from ktbench.resources import data_folder
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.wire import from_plain

FILE = "FILE.yaml"  # stands in lists of allowed values for a description that does not ship
_OWN = "own"
_KEYS, _TASK_KEYS = ([field.name for field in fields(kind)] for kind in (SuiteSpec, TaskSpec))
# What a suite leaves open can be overridden all the same.
_DEFAULTS = {field.name: field.default for field in fields(SuiteSpec) if field.default is not MISSING}


def suite_names() -> list[str]:
    """Names accepted by `+suite=`."""
    return sorted(path.stem for path in data_folder("evals").glob("*.yaml"))


def register_suites() -> None:
    """Make every suite that ships an option of the group `suite`."""
    for name in suite_names():
        _register(name, OmegaConf.load(data_folder("evals") / f"{name}.yaml"))


def is_file(value: str) -> bool:
    """Whether a value of `suite=` names a file."""
    return value.strip("'\"").endswith(".yaml")


def register_own(words: Sequence[str]) -> list[str]:
    """The words, with a registered option in place of the file of a suite.

    Raises ValueError in one line that names the file, and the key that is missing, unknown or invalid.
    """
    return [_registered(word) if key_of(word) == "suite" else word for word in words]


def _registered(word: str) -> str:
    value = word.partition("=")[2]
    if not is_file(value):
        return word
    _register(_OWN, _read(value.strip("'\"")))
    return f"suite={_OWN}"


def _register(name: str, content: Any) -> None:
    node = OmegaConf.merge(_DEFAULTS, content)
    ConfigStore.instance().store(group="suite", name=name, node=node, package="suite")


def _read(file: str) -> dict[str, Any]:
    where = f"suite={file}"
    content = parse_yaml(read_text(file, where), where, "a suite")
    check_keys(content, _KEYS, ("name", "tasks"), where)
    if not isinstance(content["tasks"], list):
        raise ValueError(f"{where}: tasks must be a list")
    for number, task in enumerate(content["tasks"], start=1):
        check_keys(task, _TASK_KEYS, ("name", "source"), f"{where}: task {number}")
    try:
        suite = from_plain(content, SuiteSpec)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if suite.name in suite_names() and _shipped(suite.name) != suite:
        raise ValueError(f"{where}: {suite.name} is a shipped suite with other content, change the name")
    return dict(content)


def _shipped(name: str) -> SuiteSpec:
    return from_plain(OmegaConf.to_container(OmegaConf.load(data_folder("evals") / f"{name}.yaml")), SuiteSpec)
