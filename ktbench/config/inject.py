"""Injection rules of the composed node `inject`, or of the file that `inject.file` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ktbench.config.files import check_keys, read_yaml
from ktbench.resources import data_folder
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.wire import from_plain

T = TypeVar("T")

_FILE_KEYS = ("name", "rules")
_RULE_KEYS = tuple(f.name for f in fields(InjectRule))
_NEEDED = tuple(f.name for f in fields(InjectRule) if f.default is MISSING and f.default_factory is MISSING)


def freeze_inject(node: Mapping[str, Any]) -> InjectSpec:
    """The rules of the composed node {name, rules, file, show}; those of `file` instead where it is set.

    Raises ValueError in one line that names the file, the rule and the key.
    """
    file = node["file"]
    spec = parse_rules({key: node[key] for key in _FILE_KEYS}, "inject") if file is None else read_rules(file)
    if _differs_from_shipped(spec):
        where = "inject" if file is None else f"inject.file={file}"
        raise ValueError(f"{where}: {spec.name} is the name of a shipped rule file with other rules, change the name")
    return spec


def show_only(node: Mapping[str, Any]) -> bool:
    """`inject.show`. Raises ValueError where it is no bool."""
    show = node["show"]
    if not isinstance(show, bool):
        raise ValueError(f"inject.show={show}: allowed are true and false")
    return show


def read_rules(file: Any) -> InjectSpec:
    """The rules of a YAML file with the keys name and rules. Raises ValueError that names the file."""
    where = f"inject.file={file}"
    return parse_rules(read_yaml(str(file), where, "rules"), where)


def parse_rules(content: Any, where: str) -> InjectSpec:
    """The rules that plain content stands for. Raises ValueError in one line that begins with `where`."""
    check_keys(content, _FILE_KEYS, _FILE_KEYS, where)
    if not isinstance(content["rules"], list):
        raise ValueError(f"{where}: rules must be a list")
    rules = tuple(_rule(rule, f"{where}: {_title(rule, i)}") for i, rule in enumerate(content["rules"], start=1))
    return _converted({"name": content["name"], "rules": rules}, InjectSpec, where)


def _rule(content: Any, where: str) -> InjectRule:
    check_keys(content, _RULE_KEYS, _NEEDED, where)
    return _converted(content, InjectRule, where)


def _converted(content: Any, kind: type[T], where: str) -> T:
    try:
        return from_plain(content, kind)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _title(rule: Any, number: int) -> str:
    """`rule 2 (norms)`, as far as it has a name."""
    name = rule.get("name") if isinstance(rule, dict) else None
    return f"rule {number} ({name})" if isinstance(name, str) and name.isprintable() else f"rule {number}"


def _differs_from_shipped(spec: InjectSpec) -> bool:
    """A run is repeated by the name of its rules, so a shipped name stands for the shipped rules."""
    shipped = data_folder("conf") / "inject" / f"{spec.name}.yaml"
    return shipped.is_file() and _shipped(shipped) != spec


@cache
def _shipped(path: Path) -> InjectSpec:
    return parse_rules(read_yaml(path, str(path), "rules"), str(path))
