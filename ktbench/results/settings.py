"""What a cell was run at apart from its arm: equal settings make a group, which has its own baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

from ktbench.resources import shipped
from ktbench.spec.features import BY_NAME
from ktbench.spec.inject import InjectSpec
from ktbench.spec.machine import CONSTANTS, MachineSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.serving.stream import SAMPLED
from ktbench.spec.sweep import PRECISIONS, START_KEY, STARTS, TEMPERATURE_KEY
from ktbench.spec.wire import digest, from_plain, to_plain

K = TypeVar("K")
V = TypeVar("V")
Setting: TypeAlias = bool | int | float | str | None
TOKENS = "tokens per expert"
_CONSTANTS = {constant.name: constant for constant in CONSTANTS}
_MACHINE = ("vector", "gpu", *(constant.name for constant in CONSTANTS), "calibration")
_OF_SERVING = ("workload.stream", "engine.serving.")  # that are not there where nothing is served
_WORDS = {"precision": PRECISIONS, START_KEY: STARTS, TEMPERATURE_KEY: (SAMPLED,)}  # that labels may name
_DIGESTS: dict[str, str] = {}
# Shown only where nothing else tells two groups apart: they go with another setting that varies.
_FOLLOWING = (
    *(f"machine.{name}" for name in reversed(_MACHINE)),
    "engine.device",
    "model.config",
    "model.layers",
    "model.vocab",
    "model.path",
    "inject.rules",
    "workload.trace",
    "workload.active_experts",
    "workload.steps",
    "workload.stream.requests",
    "engine.serving.disk",
    "device_precision",
)


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """Settings by dotted key; system, peer and features are the arm's. The model's configuration is one of them by its
    size, its depth and its digest.

    Of a layer the batch is shown as what it means to an expert: the tokens that it gets. A machine is there where the
    cell is simulated, by its title.
    """
    model = spec.model
    found: dict[str, Setting] = {
        **({} if spec.machine is None else _of_machine(spec.machine)),
        "model": model.name,
        "model.layers": model.shape.layers,
        "model.vocab": model.shape.vocab,
        "model.seed": model.seed,
        "model.path": model.path,
        **({} if model.packed is None else {"model.packed": model.packed}),
        **({} if model.adapter is None else {"model.adapter": model.adapter}),
        "model.config": _digest(model.config),
        "precision": spec.precision,
        "device_precision": spec.device_precision,
        "inject": rules_word(spec.inject),
        "inject.rules": _digest(to_plain(spec.inject.rules)),
        **dict(flattened("workload", spec.workload)),
        **{key: value for key, value in flattened("engine", spec.engine) if not _is_of_features(key)},
    }
    if spec.workload.examples is None:
        del found["workload.examples"]
    if spec.workload.phase != "serve":
        found = {key: value for key, value in found.items() if not key.startswith(_OF_SERVING)}
    return _of_layer(found, spec) if spec.workload.phase == "layer" else found


def _is_of_features(key: str) -> bool:
    return key.startswith("engine.own") or key.rpartition(".")[2] in BY_NAME


def _of_machine(machine: MachineSpec) -> dict[str, Setting]:
    return {"machine": machine.title, **{f"machine.{name}": getattr(machine, name) for name in _MACHINE}}


def cell_settings(cells: Sequence[Cell]) -> dict[str, dict[str, Setting]]:
    """Settings of cells by key, with the same settings in all cells of a part: equal settings make a group.

    Where labels of a part name a precision, what the prefix cache has at the begin, or that tokens are drawn, that
    belongs to the arm and is no setting. The threshold of the hybrid of AVX-512 and AMX is empty in a part that has
    none.
    """
    found: dict[str, dict[str, Setting]] = {}
    for part in dict.fromkeys(cell.part for cell in cells):
        mine = [cell for cell in cells if cell.part == part]
        words = {word for cell in mine for word in cell.label.split()}
        dropped = {key for key, known in _WORDS.items() if not words.isdisjoint(known)}
        idle = {} if any(cell.spec.engine.hybrid for cell in mine) else {"engine.amx_min_tokens": None}
        keyed = ({k: v for k, v in (settings_of(cell.spec) | idle).items() if k not in dropped} for cell in mine)
        found |= zip((cell.key for cell in mine), with_same_keys(keyed), strict=True)
    return found


def with_same_keys(groups: Iterable[Mapping[str, Setting]]) -> list[dict[str, Setting]]:
    """The settings with the same keys in each: beside simulated cells the machine of measured ones is `here`."""
    listed = list(groups)
    keys = dict.fromkeys(key for group in listed for key in group)
    return [{key: group.get(key, "here" if key == "machine" else None) for key in keys} for group in listed]


def rules_word(inject: InjectSpec) -> str:
    """`lean`; `lean (changed)` where a shipped file of that name holds other rules now."""
    rules = _shipped_rules(inject.name)
    return inject.name if rules is None or rules == to_plain(inject.rules) else f"{inject.name} (changed)"


@cache
def _shipped_rules(name: str) -> Any:
    """Plain content of the rules of a shipped file; None where none has the name."""
    content = shipped(f"inject/{name}")
    return to_plain(from_plain(content, InjectSpec).rules) if content else None


def model_title(name: str) -> str:
    """`Qwen3-30B-A3B`: the title of a model's preset; the name itself of what has none."""
    return str(shipped(f"model/{name}").get("title", name))


def described_title(name: str) -> str:
    """`2x EPYC 9654, L40S 48 GB`: the title of a machine's preset; the name itself of what has none."""
    return str(shipped(f"machine/{name}").get("title") or name)


def calibration_title(name: str) -> str:
    """`KTransformers 0.2 to 0.2.4`: the program that a calibration stands for; the name itself of what has none."""
    return str(shipped(f"calibration/{name}").get("title", name))


def group_by(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values with equal keys together, in order of appearance."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def precision_word(label: str) -> str | None:
    """The precision that an arm names: `int8` of `+v+d int8`; None where it leaves that to the spec."""
    return next((word for word in label.split() if word in PRECISIONS), None)


def without_precision(label: str) -> str:
    """An arm's features alone: `+v+d` of `+v+d int8`."""
    return " ".join(word for word in label.split() if word not in PRECISIONS)


def _digest(content: Any) -> str:
    """Of plain content that is the same for many cells."""
    known = repr(content)
    if known not in _DIGESTS:
        _DIGESTS[known] = digest(content)
    return _DIGESTS[known]


@cache
def flattened(part: str, value: Any) -> tuple[tuple[str, Setting], ...]:
    """Fields of a spec by dotted key, those of nested specs too; many cells have the same engine or the same work."""
    return tuple(_flat(part, value))


def _flat(part: str, value: Any) -> Iterator[tuple[str, Setting]]:
    for f in fields(value):
        key, mine = f"{part}.{f.name}", getattr(value, f.name)
        if is_dataclass(mine):
            yield from _flat(key, mine)
        else:
            yield key, mine


def _of_layer(found: Mapping[str, Setting], spec: RunSpec) -> dict[str, Setting]:
    tokens = spec.tokens_per_expert
    shown = {TOKENS: int(tokens) if tokens == int(tokens) else tokens}
    return {key: value for key, value in (shown | dict(found)).items() if key != "workload.batch"}


def varying(groups: Iterable[Mapping[str, Setting]]) -> tuple[str, ...]:
    """Keys whose value is not the same in every group, in the order in which they appear.

    What goes with another varying key (the model's digest, its vocabulary, the steps of a trial) is left out.
    """
    listed = list(groups)
    keys = [key for key in dict.fromkeys(key for group in listed for key in group) if len(_values(listed, [key])) > 1]
    for key in _FOLLOWING:
        others = [other for other in keys if other != key]
        if len(_values(listed, others)) == len(_values(listed, keys)):
            keys = others
    return tuple(keys)


def _values(groups: Iterable[Mapping[str, Setting]], keys: Iterable[str]) -> set[tuple[Setting, ...]]:
    names = tuple(keys)
    return {tuple(group.get(name) for name in names) for group in groups}


def setting_text(value: object) -> str:
    """A setting as Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{setting_text(one)}' for key, one in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def setting_in_words(key: str, value: object) -> str:
    """A setting as a person says it: `prompt 8`, `read bandwidth of a domain 200 GB/s`, `trace not set`."""
    name = key.rpartition(".")[2]
    constant = _CONSTANTS.get(name) if key.startswith("machine.") else None
    words = constant.title if constant else name.replace("_", " ")
    if value is None or isinstance(value, bool):
        return f"{words} {'not set' if value is None else 'on' if value else 'off'}"
    return f"{words} {value}{f' {constant.unit}' if constant and constant.unit else ''}"


def shown_setting(key: str, value: object) -> str:
    """A setting as tables show it: a model by its title, anything else as Hydra reads it."""
    return model_title(str(value)) if key == "model" else setting_text(value)
