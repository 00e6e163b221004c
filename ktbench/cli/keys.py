"""The keys of a command line, with defaults and allowed values, from the fields of the specs that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME as FEATURE
from ktbench.spec.machine import BY_NAME as CONSTANT
from ktbench.spec.machine import MachineSpec
from ktbench.spec.peers import BY_NAME, OURS, PeerSpec
from ktbench.spec.run_spec import MeasureSpec, WorkloadSpec
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.sweep import PRECISIONS, SweepSpec

# The spec behind each group of keys.
SPECS: Mapping[str, type] = {
    "engine": EngineSpec,
    "workload": WorkloadSpec,
    "measure": MeasureSpec,
    "sweep": SweepSpec,
    "peer": PeerSpec,
    "suite": SuiteSpec,
    "machine": MachineSpec,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key: its `default` and its values as a command line has them, and what it is where its name does not say.

    `choices` are the words that it takes beside what `kind` says: N, a number; X, a number with decimals; TEXT; LIST.
    `default` is empty where the value comes from the option of a group or has to be given.
    """

    name: str
    default: str
    choices: tuple[str, ...] = ()
    kind: str = ""
    about: str = ""

    @property
    def allowed(self) -> str:
        """`true|false`, `N|null`."""
        return "|".join([*([self.kind] if self.kind else []), *self.choices])


_DERIVED = ("peer.operator_id",)  # from the file that another key names


def keys_of(group: str, spec: type) -> Iterator[Key]:
    """The keys below `group` that fill a spec, those of specs inside it included."""
    hints = get_type_hints(spec)
    for field in fields(spec):
        name, kind = f"{group}.{field.name}", _inner(hints[field.name])
        if isinstance(kind, type) and is_dataclass(kind):
            yield from keys_of(name, kind)
        elif name not in _DERIVED:
            yield _key(name, hints[field.name], field)


def _inner(hint: Any) -> Any:
    """The type of a field that may be None."""
    kinds = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    return kinds[0]


def _key(name: str, hint: Any, field: Field[Any]) -> Key:
    kinds, choices = _values(hint)
    return Key(name=name, default=_default(field), choices=choices, kind="|".join(kinds), about=_about(name))


_KINDS = {int: "N", float: "X", str: "TEXT", tuple: "LIST", dict: "MAPPING"}


def _values(hint: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kinds of values, then words, that a type takes."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        found = [_values(one) for one in get_args(hint)]
        return tuple(dict.fromkeys(k for kinds, _ in found for k in kinds)), tuple(
            dict.fromkeys(word for _, words in found for word in words)
        )
    if origin is Literal:
        return (), tuple(map(str, get_args(hint)))
    if hint is bool:
        return (), ("true", "false")
    if hint is NoneType:
        return (), ("null",)
    return (_KINDS.get(origin or hint, "TEXT"),), ()


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return word_of(field.default_factory())
    return "" if field.default is MISSING else word_of(field.default)


def word_of(value: Any) -> str:
    """A default as a command line has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(word_of, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _about(name: str) -> str:
    group, _, field = name.partition(".")
    if group == "engine" and field in FEATURE:
        return f"{FEATURE[field].mark}: {FEATURE[field].title}"
    if group == "machine" and field in CONSTANT:
        constant = CONSTANT[field]
        return f"{constant.title}, {constant.unit}" if constant.unit else constant.title
    return ""


_YES_NO = ("true", "false")
# Keys that are no field of a spec: what a run is made of, and what is done with it.
OF_A_CELL: tuple[Key, ...] = (
    Key(name="system", default=OURS, choices=(OURS, *BY_NAME), about="what is measured"),
    Key(name="precision", default="native", choices=("native", *PRECISIONS), about="format of the routed experts"),
    Key(name="device_precision", default="native", choices=("native", *PRECISIONS), about="format of linear layers"),
    Key(name="model.layers", default="null", kind="N", choices=("null",), about="the first N layers; null: all"),
    Key(name="model.experts", default="null", kind="N", choices=("null",), about="experts built with workload=layer"),
    Key(name="model.vocab", default="auto", kind="N", choices=("auto", "full"), about="rows of the output head"),
    Key(name="model.seed", default="0", kind="N", about="of synthetic weights"),
    Key(name="model.path", default="null", kind="PATH", choices=("null",), about="a checkpoint: a folder or a .gguf"),
    Key(name="model.config", default="", kind="FILE", about="a config.json, with synthetic weights"),
    Key(name="model.adapter", default="null", kind="FOLDER", choices=("null",), about="a LoRA that PEFT saved, merged"),
    Key(name="model.packed", default="null", kind="FOLDER", choices=("null",), about="keeps packed weights"),
    Key(name="inject.file", default="null", kind="FILE", choices=("null",), about="injection rules of your own"),
)
OF_RUN: tuple[Key, ...] = (
    Key(name="inject.show", default="false", choices=_YES_NO, about="show which modules are replaced, and stop"),
)
OF_RUNS: tuple[Key, ...] = (
    Key(name="run_name", default="null", kind="NAME", about="folder of the run below runs/"),
    Key(name="resume", default="null", kind="RUN", choices=("latest",), about="go on with a run that was stopped"),
    Key(name="resume_changed", default="false", choices=_YES_NO, about="also with other code or another machine"),
)
OF_SUITES: tuple[Key, ...] = (
    Key(name="tasks", default="null", kind="LIST", about="of the suite, these tasks alone"),
    Key(name="limit", default="null", kind="N", about="questions of each task"),
    Key(name="data_dir", default="null", kind="FOLDER", about="local files of the suite's data"),
    Key(name="confirm_unsafe", default="false", choices=_YES_NO, about="run programs that a model wrote, sandboxed"),
)
