"""Files of the user's own in place of the options of groups: a machine, a suite, an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from ktbench.config.files import USER_FILE, check_keys, read_yaml
from ktbench.config.lists import key_of
from ktbench.config.machine import ReadLocal, is_own, read_machine
from ktbench.config.options import (
    REGISTERED,
    defaults_of,
    is_file,
    is_registered_task,
    own_folders,
    read_named,
    register,
    suite_names,
)
from ktbench.resources import data_folder, option_files
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.wire import from_plain

_KEYS, _TASK_KEYS = ([field.name for field in fields(kind)] for kind in (SuiteSpec, TaskSpec))


def register_files(words: Sequence[str], read_local: ReadLocal) -> list[str]:
    """The words, with a registered option in place of what is none: files, `machine=local`, a task of lm-eval.

    Raises ValueError in one line that names the file, and the key that is missing, unknown or invalid.
    """
    return [_registered(word, words, read_local) for word in words]


def _registered(word: str, words: Sequence[str], read_local: ReadLocal) -> str:
    group, value = key_of(word), word.partition("=")[2].strip("'\"")
    if group == "machine" and is_own(value):
        content = read_machine(value, read_local)
    elif group == "suite" and is_registered_task(value):
        name = value.removeprefix(REGISTERED)
        content = {"name": name, "title": name, "tasks": [{"name": name, "source": value}]}
    elif group == "suite" and is_file(value):
        content = _read_suite(value)
    elif group == "ablation" and is_file(value):
        content = _read_ablation(value, words)
    else:
        return word
    register(group, USER_FILE, content, f"{group}={value}")
    return f"{'+' * word.startswith('+')}{group}={USER_FILE}"


def _read_ablation(file: str, words: Sequence[str]) -> dict[str, Any]:
    where = f"ablation={file}"
    content = read_yaml(file, where, "an ablation")
    if not isinstance(content, dict) or not isinstance(content.get("sweep"), dict):
        raise ValueError(f"{where}: must be a mapping with the key sweep, which names what is varied")
    name = str(content["sweep"].get("name"))
    shipped = option_files("ablation").get(name)
    if shipped and read_yaml(shipped, str(shipped), "an ablation") != content:
        raise ValueError(f"{where}: {name} is a shipped ablation with other content, change the name")
    for group, option in defaults_of(content.get("defaults")):
        read_named(group, option, own_folders(words))
    return content


def _read_suite(file: str) -> dict[str, Any]:
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
