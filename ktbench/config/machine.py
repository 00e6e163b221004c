"""Machine descriptions as nodes of the group `machine`: presets, files, and the output of `probe`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from ktbench.config.files import USER_FILE, check_keys, read_yaml
from ktbench.resources import data_folder
from ktbench.spec.errors import RequestError
from ktbench.spec.machine import BY_NAME, MachineSpec, with_constant
from ktbench.spec.wire import from_plain

Node = dict[str, Any]
# Plain content of the MachineSpec that `probe` wrote.
ReadLocal = Callable[[], Mapping[str, Any]]

# Values of `machine=` besides the names of presets.
BESIDE_PRESETS = ("local", "FILE.yaml")
HERE, _LOCAL = "here", "local"
_FIELDS = tuple(f.name for f in fields(MachineSpec))
_DEFAULTS = {f.name: f.default for f in fields(MachineSpec) if f.default is not MISSING}


def no_local() -> Mapping[str, Any]:
    """The default of `read_local`: there is no description of this machine."""
    raise RequestError("machine=local: run `python -m ktbench probe` first")


def is_own(value: str) -> bool:
    """Whether a value names a description that is not a preset: a file, or the output of `probe`."""
    return value == _LOCAL or value.strip("'\"").endswith(".yaml")


def read_machine(value: str, read_local: ReadLocal) -> Node:
    """The node of a description that is no preset.

    Raises ValueError in one line that names the file, and the constant that is missing, invalid or without a source.
    """
    where = f"machine={value}"
    if value == _LOCAL:
        return _node(dict(read_local()), where)
    node = _node(read_yaml(value, where, "a machine"), where)
    shipped = _preset_file(str(node["name"]))
    if shipped.is_file() and preset(node["name"]) != node:
        raise ValueError(f"{where}: {node['name']} is a shipped machine with other constants, change the name")
    return node


def _node(content: Any, where: str) -> Node:
    """All fields of the MachineSpec in a file's content."""
    check_keys(content, _FIELDS, [name for name in _FIELDS if name not in _DEFAULTS], where)
    sources = content["sources"] or {}
    if isinstance(sources, dict):
        sources = {name: source for name, source in sources.items() if source is not None}
    node: Node = _DEFAULTS | content | {"sources": sources}
    try:
        from_plain(node, MachineSpec)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return node


def preset(option: str, folders: Sequence[Path] = ()) -> Node:
    """The node of an option before any override, one of the user's own in the first of the `folders` that has it."""
    if option == USER_FILE:
        return _plain(ConfigStore.instance().load(f"machine/{USER_FILE}.yaml").node)
    own = next((file for folder in folders if (file := folder / "machine" / f"{option}.yaml").is_file()), None)
    return _plain(OmegaConf.load(own)) if own else dict(_shipped(option))


@cache
def _shipped(name: str) -> Node:
    node = _plain(OmegaConf.load(_preset_file(name)))
    check_constants(node, f"machine={name}")
    return node


def check_constants(node: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, headed by `where`, for an option that lacks a key: overrides need one to change."""
    check_keys(node, _FIELDS, _FIELDS, where)


def _preset_file(name: str) -> Path:
    return data_folder("conf") / "machine" / f"{name}.yaml"


def _plain(node: Any) -> Node:
    return dict(OmegaConf.to_container(node))  # type: ignore[arg-type]


def freeze_machine(node: Mapping[str, Any], varied: Collection[str] = ()) -> Node | None:
    """Plain content of a MachineSpec, None for the machine that this runs on.

    `node["preset"]` has the fields as they were before overrides. The source of an overridden constant says so;
    constants that axes vary, by key in `varied`, keep theirs. Raises ValueError for a change of `here`.
    """
    was = node["preset"]
    now = {name: was[name] if f"machine.{name}" in varied else node[name] for name in _FIELDS}
    if was["name"] == HERE:
        _require_unchanged(was, now)
        return None
    if not isinstance(now["sources"], dict):
        return now
    content = dict(was)
    for name in BY_NAME:
        if now[name] != was[name]:
            content = with_constant(content, name, now[name])
    given = {name: source for name, source in now["sources"].items() if source != was["sources"].get(name)}
    constants = {name: content[name] for name in BY_NAME}
    return {**now, **constants, "sources": content["sources"] | given}


def _require_unchanged(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if value != was[name]:
            raise ValueError(f"machine.{name}={value}: only described machines can change, name one with machine=NAME")
