"""Names as logs hold them: what is renamed in the code keeps its old name there, so that ids and recorded runs last."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from ktbench.spec.engine import PAPER_AMX_MIN_TOKENS, ServingSpec
from ktbench.spec.errors import instead
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import IMPLEMENTATION_OWN
from ktbench.spec.run_spec import RunSpec


def digest(content: Any) -> str:
    """Twelve hex digits of the canonical JSON of plain content (dict, list, str, int, float, bool, None)."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def spec_id(spec: RunSpec) -> str:
    """Identity of the request. Left out: labels of model and machine, how long to measure, where a peer is found, what
    the files of a model say of their formats.

    Whether weights are loaded anew is part of it: a value is then one over many loads.
    """
    content = to_wire(spec)
    if spec.workload.stream is None:
        del content["workload"]["stream"]  # that earlier runs did not have
    if spec.workload.phase != "train":
        for name in ("adapters", "lora_rank", "recompute"):
            del content["workload"][name]  # neither
    if spec.workload.examples is None:
        del content["workload"]["examples"]  # nor these
    content["engine"] = _as_before(spec, content["engine"])
    del content["measure"]
    if spec.measure.reloads:
        content["measure"] = {"reload_blocks": spec.measure.reload_blocks}
    content["peer"] = _peer(spec)
    del content["model"]["name"]
    del content["model"]["packed"], content["model"]["stored"]
    if spec.model.adapter is None:
        del content["model"]["adapter"]  # that earlier runs did not have
    if spec.maps_packed:
        content["model"]["packed"] = True  # wherever: what is mapped lies on other pages
    machine = content.pop("machine")
    if machine is not None:
        content["machine"] = {key: value for key, value in machine.items() if key not in ("name", "title", "sources")}
        if spec.machine is not None and spec.machine.nvlink_gb_per_s is None:
            del content["machine"]["nvlink_gb_per_s"]  # that earlier descriptions did not have
    return digest(content)


def _peer(spec: RunSpec) -> Any:
    """Of the settings of a peer those that say what runs, not where it is found."""
    if spec.system == "openai":
        return [spec.peer.url, spec.peer.served_model]
    if spec.system == "transformers" and spec.peer.implementation == IMPLEMENTATION_OWN:
        return [IMPLEMENTATION_OWN, spec.peer.operator_id]
    return spec.peer.implementation if spec.system == "transformers" else None


def _as_before(spec: RunSpec, engine: dict[str, Any]) -> dict[str, Any]:
    """The settings of an engine from before there were others; a threshold that does not matter has its default."""
    later = {name: value for name, value in engine.items() if name not in _LATER or value != _LATER[name]}
    later.pop("own_file", None)  # whatever it is called
    if not spec.engine.own:
        later.pop("own_id", None)
    measured_hybrid = spec.engine.hybrid and spec.machine is None
    if later["amx_min_tokens"] == "auto" and not measured_hybrid:
        later["amx_min_tokens"] = PAPER_AMX_MIN_TOKENS
    return later


T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers and None that stand for a dataclass."""
    return msgspec.to_builtins(value)


def from_plain(content: Any, kind: type[T]) -> T:
    """The dataclass that plain content stands for.

    Raises ValueError with the path of the first field that is missing or of the wrong type, and the allowed values
    where they can be listed; what a class refuses at construction is passed on in its own words.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):
            raise ValueError(str(error.__cause__)) from None
        raise ValueError(_beyond(str(error), content) or _message(str(error), kind)) from None


_LIMIT = re.compile(r"Expected `[^`]*` (>=|>) ([\d.]+) - at `\$\.([\w.]+)`")
_SAID = {">=": "must be at least", ">": "must be above"}


def _beyond(message: str, content: Any) -> str:
    """`engine.threads=0: must be at least 1`, as `check_ranges` says it; empty for another message."""
    found = _LIMIT.fullmatch(message)
    if found is None:
        return ""
    value = content
    for name in found[3].split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return f"{found[3].removeprefix('spec.')}={value}: {_SAID[found[1]]} {float(found[2]):g}"


def _message(message: str, kind: type[Any]) -> str:
    """`engine.avx512: expected bool, got str`, with the allowed values of an enumeration."""
    what, _, where = message.replace("`", "").partition(" - at $.")
    where = where.removeprefix("spec.")
    allowed = _allowed(kind, re.split(r"[.\[]", where)) if "enum" in what else ()
    given = what.partition("'")[2].rpartition("'")[0]  # invalid enum value 'decod'
    listed = instead(given, map(str, allowed)) if allowed else ""
    return f"{where}: {what[0].lower()}{what[1:]}{listed}" if where else what


def _allowed(kind: Any, path: list[str]) -> tuple[Any, ...]:
    for name in path:
        parts = [one for one in (kind, *get_args(kind)) if is_dataclass(one)]  # what may be None is a union
        kind = get_type_hints(parts[0]).get(name) if parts else None
    return tuple(one for option in get_args(kind) for one in _options(option))


_KINDS = {int: "any integer", float: "any number", str: "any text", bool: "true, false"}


def _options(option: Any) -> tuple[Any, ...]:
    """A value of an enumeration; of a union what each member allows."""
    if isinstance(option, type):
        return () if option is type(None) else (_KINDS.get(option, option.__name__),)
    return get_args(option) or (option,)


_FEATURES = {feature.name: feature.letter for feature in FEATURES if feature.letter}
# The features of the first runs, whose ids name them whether on or off; an id names all others where they are on.
_FIRST = ("avx512", "amx", "dynamic", "numa", "cuda_graph", "packed_dense", "deferral", "skipping")
# Settings that the first runs did not have, with the values that stand for what those did.
_LATER = {
    **{_FEATURES.get(one.name, one.name): one.off for one in FEATURES if one.name not in _FIRST},
    "serving": msgspec.to_builtins(ServingSpec()),
    "own": {},
    "own_file": None,
    "own_id": "",
}
# Field that holds a dataclass -> name of a field of it in the code -> on the wire.
_FIELDS: Mapping[str, Mapping[str, str]] = {"engine": _FEATURES}
# Class of a fact -> name of a field of it in the code -> on the wire.
_FACTS: Mapping[str, Mapping[str, str]] = {"Record": {"worker_session": "sitting", "system_metrics": "conduct"}}
# Field that holds a name -> the name in the code -> on the wire.
_VALUES: Mapping[str, Mapping[str, str]] = {"feature": _FEATURES}


def to_wire(value: Any) -> Any:
    """Plain content that stands for a dataclass, by the names of logs."""
    return _with_names(_renamed(to_plain(value), _FIELDS, _VALUES), _FACTS.get(type(value).__name__))


def fact_to_plain(fact: Any) -> Any:
    """Plain content of a line of a log by its names there, what it holds by those of the code: as reports have it."""
    return _with_names(to_plain(fact), _FACTS.get(type(fact).__name__))


def from_wire(content: Any, kind: type[T]) -> T:
    """The dataclass that content of a log stands for. Raises ValueError as `from_plain`."""
    content = _renamed(content, _FIELDS_READ, _VALUES_READ)
    return from_plain(_with_names(content, _FACTS_READ.get(kind.__name__)), kind)


def _with_names(content: Any, names: Mapping[str, str] | None) -> Any:
    return (
        {names.get(key, key): value for key, value in content.items()}
        if names and isinstance(content, dict)
        else content
    )


def _inverse(names: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {field: {new: old for old, new in of_field.items()} for field, of_field in names.items()}


_FIELDS_READ, _VALUES_READ, _FACTS_READ = map(_inverse, (_FIELDS, _VALUES, _FACTS))


def _renamed(content: Any, fields: Mapping[str, Mapping[str, str]], values: Mapping[str, Mapping[str, str]]) -> Any:
    if isinstance(content, (list, tuple)):
        # Samples are long lists of numbers.
        return [_renamed(one, fields, values) for one in content] if _holds_dicts(content) else content
    if not isinstance(content, dict):
        return content
    found = {
        key: _renamed(value, fields, values) if isinstance(value, (dict, list, tuple)) else value
        for key, value in content.items()
    }
    for key, names in fields.items():
        if isinstance(inner := found.get(key), dict):
            found[key] = {names.get(name, name): value for name, value in inner.items()}
    for key, names in values.items():
        if isinstance(word := found.get(key), str):
            found[key] = names.get(word, word)
    return found


def _holds_dicts(content: Any) -> bool:
    return any(isinstance(one, (dict, list)) for one in content[:1])
