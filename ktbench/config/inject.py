"""Injection rules out of the composed node `inject`, or out of the file that `inject.file` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ktbench.core.inject import InjectRule, InjectSpec
from ktbench.core.plain import from_plain
from ktbench.resources import data_folder

T = TypeVar("T")

_FILE_KEYS = ("name", "rules")
_RULE_KEYS = tuple(f.name for f in fields(InjectRule))
_NEEDED = tuple(f.name for f in fields(InjectRule) if f.default is MISSING and f.default_factory is MISSING)


# By PyYAML's constructors for a scalar that is not what its tag says, by OmegaConf for a document that is a number.
_LET_THROUGH = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def freeze_inject(node: Mapping[str, Any]) -> InjectSpec:
    """The rules of the composed node {name, rules, file, show}; those of `file` in their place where it is set.

    Raises ValueError in one line that names the file, the rule and the key.
    """
    file = node["file"]
    spec = parse_rules({key: node[key] for key in _FILE_KEYS}, "inject") if file is None else read_rules(file)
    if _differs_from_shipped(spec):
        where = "inject" if file is None else f"inject.file={file}"
        raise ValueError(f"{where}: {spec.name} is the name of a shipped rule file with other rules, change the name")
    return spec


def wants_show(node: Mapping[str, Any]) -> bool:
    """`inject.show`. Raises ValueError where it is no bool."""
    show = node["show"]
    if not isinstance(show, bool):
        raise ValueError(f"inject.show={show}: allowed are true and false")
    return show


def read_rules(file: Any) -> InjectSpec:
    """The rules of a YAML file with the keys name and rules. Raises ValueError that names the file."""
    try:
        text = Path(str(file)).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"inject.file={file}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"inject.file={file}: is no text in UTF-8") from None
    return parse_rules(_yaml(text, f"inject.file={file}"), f"inject.file={file}")


def _yaml(text: str, where: str) -> Any:
    """Content of YAML as the shipped files are read: a key that is there twice is refused."""
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ValueError(f"{where}: is no YAML of rules: {' '.join(str(error).split())}") from None
    except _LET_THROUGH as error:
        raise ValueError(f"{where}: is no YAML of rules ({type(error).__name__})") from None


def parse_rules(content: Any, where: str) -> InjectSpec:
    """The rules that plain content stands for. Raises ValueError in one line that begins with `where`."""
    _check_keys(content, _FILE_KEYS, _FILE_KEYS, where)
    if not isinstance(content["rules"], list):
        raise ValueError(f"{where}: rules must be a list")
    rules = tuple(_rule(rule, f"{where}: {_title(rule, i)}") for i, rule in enumerate(content["rules"], start=1))
    return _converted({"name": content["name"], "rules": rules}, InjectSpec, where)


def _rule(content: Any, where: str) -> InjectRule:
    _check_keys(content, _RULE_KEYS, _NEEDED, where)
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


def _check_keys(content: Any, allowed: tuple[str, ...], needed: tuple[str, ...], where: str) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping with the keys {', '.join(allowed)}")
    for key in content:
        if key not in allowed:
            close = get_close_matches(str(key), allowed, n=1, cutoff=0.5)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ValueError(f"{where}: unknown key {key!r}{hint}; allowed are {', '.join(allowed)}")
    if missing := [key for key in needed if key not in content]:
        raise ValueError(f"{where}: the key {missing[0]} is missing")


def _differs_from_shipped(spec: InjectSpec) -> bool:
    """A run is repeated by the name of its rules, so a shipped name stands for the shipped rules."""
    shipped = data_folder("conf") / "inject" / f"{spec.name}.yaml"
    return shipped.is_file() and parse_rules(_yaml(shipped.read_text(), str(shipped)), str(shipped)) != spec
