"""A suite that a file describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from ktbench.config.files import USER_FILE, check_keys, read_yaml
from ktbench.config.lists import key_of
from ktbench.config.options import REGISTERED, is_file, is_registered_task, register_suite, suite_names
from ktbench.resources import data_folder
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.wire import from_plain

_KEYS, _TASK_KEYS = ([field.name for field in fields(kind)] for kind in (SuiteSpec, TaskSpec))


def register_own(words: Sequence[str]) -> list[str]:
    """The words, with a registered option in place of the file of a suite.

    Raises ValueError in one line that names the file, and the key that is missing, unknown or invalid.
    """
    return [_registered(word) if key_of(word) == "suite" else word for word in words]


def _registered(word: str) -> str:
    value = word.partition("=")[2]
    if is_registered_task(value):
        name = value.removeprefix(REGISTERED)
        content = {"name": name, "title": name, "tasks": [{"name": name, "source": value}]}
        register_suite(USER_FILE, content, f"suite={value}")
        return f"suite={USER_FILE}"
    if not is_file(value):
        return word
    file = value.strip("'\"")
    register_suite(USER_FILE, _read(file), f"suite={file}")
    return f"suite={USER_FILE}"


def _read(file: str) -> dict[str, Any]:
    where = f"suite={file}"
    content = read_yaml(file, where, "a suite")
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
