"""The keys of a configuration, and those of an ablation's file held against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from ktbench.config.files import check_keys, read_yaml
from ktbench.resources import data_folder, option_files
from ktbench.spec.engine import EngineSpec
from ktbench.spec.inject import InjectSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import MeasureSpec, WorkloadSpec
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import PRECISIONS, SweepSpec
from ktbench.spec.wire import to_plain

_DEFAULTS: dict[str, Any] = {
    "engine": to_plain(EngineSpec()) | {"device": None, "best": False},  # None: the machine's GPU where it has one
    "model": {"packed": None, "adapter": None},
    "measure": MeasureSpec(),
    "peer": PeerSpec(),
    "sweep": SweepSpec(),
    "inject": {"file": None, "show": False},
    "suite": None,
    "tasks": None,
    "limit": None,
    "data_dir": None,
    "confirm_unsafe": False,
    "resume": None,
    "resume_changed": False,
    "run_name": None,
    "wait": False,
}
# Keys with those below each; empty below what has none, and below a mapping of any keys, such as `sweep.axes`.
Keys = dict[str, Any]


@cache
def register_defaults() -> None:
    """Give Hydra the values that the specs have by default, and the resolvers of our own."""
    # Hydra copies its sources for each composition, and with them its store of all options, which is most of the time.
    # Nothing needs that copy: what is loaded from the store is copied once more.
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    OmegaConf.register_new_resolver("weight_formats", lambda: _node([*PRECISIONS]))
    OmegaConf.register_new_resolver("by_device", lambda device, cpu, cuda: _node(cuda if device == "cuda" else cpu))
    defaults = {key: to_plain(value) for key, value in _DEFAULTS.items()}
    ConfigStore.instance().store(name="spec_defaults", node=defaults)


def _node(value: Any) -> Any:
    """What a resolver returns: OmegaConf sets lists in place of an interpolation (`--resolve`) only as its own."""
    return OmegaConf.create(value) if isinstance(value, list) else value


def known_keys() -> list[str]:
    """Every dotted key of the composed configuration."""
    return sorted([*_flatten(_composed(), ""), *(f"suite.{field.name}" for field in fields(SuiteSpec))])


def check_ablation(content: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, headed by `where`, for a key of an ablation's file that no configuration has."""
    model = content.get("model")
    sets_facts = isinstance(model, dict) and isinstance(model.get("config"), dict)
    _check(content, _ablation_keys() | ({"model": _model_keys()} if sets_facts else {}), where, "")


def _check(content: Any, keys: Keys, where: str, path: str) -> None:
    """Check a mapping, or each mapping in a list; the spec validates all other values."""
    if isinstance(content, list):
        for one in content:
            _check(one, keys, where, path)
    if not keys or not isinstance(content, dict):
        return
    check_keys(content, keys, (), f"{where}: {path}" if path else where)
    for key, value in content.items():
        _check(value, keys[key], where, f"{path}.{key}" if path else str(key))


@cache
def _ablation_keys() -> Keys:
    """Presets of a group differ in their keys, so a spec says what all of them are."""
    keys = _keys_of(_composed())
    inject = keys["inject"] | _fields_of(InjectSpec)
    specs = {"workload": _fields_of(WorkloadSpec), "suite": _fields_of(SuiteSpec), "inject": inject}
    return {"defaults": {}} | keys | specs


@cache
def _model_keys() -> Keys:
    """Architectures differ in their facts: those of all models that ship."""
    config: Keys = {}
    for path in option_files("model").values():
        _add(config, _keys_of(read_yaml(path, str(path), "a model")["config"]))
    return {**_ablation_keys()["model"], "config": config}


def _add(keys: Keys, others: Keys) -> None:
    for key, below in others.items():
        _add(keys.setdefault(key, {}), below)


def _keys_of(content: Any) -> Keys:
    return {key: _keys_of(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _fields_of(kind: Any) -> Keys:
    """The keys of plain content of a dataclass, of what may be None, or of the elements of a tuple."""
    if is_dataclass(kind):
        return {name: _fields_of(hint) for name, hint in get_type_hints(kind).items()}
    found: Keys = {}
    for one in get_args(kind):
        _add(found, _fields_of(one))
    return found


@cache
def _composed() -> Any:
    register_defaults()
    with initialize_config_dir(str(data_folder("conf").resolve()), version_base="1.3"):
        return OmegaConf.to_container(compose("config", []))


def _flatten(content: Any, prefix: str) -> Iterator[str]:
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        yield f"{prefix}{key}"
        yield from _flatten(value, f"{prefix}{key}.")
