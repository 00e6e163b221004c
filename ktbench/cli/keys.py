"""The keys of a command line, with defaults and allowed values, from the fields of the specs that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError, field_meta, instead
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


_DERIVED = ("peer.operator_id", "engine.own_id")  # from the file that another key names


def keys_of(group: str, spec: type) -> Iterator[Key]:
    """The keys below `group`, if any, that fill a spec, those of specs inside it included."""
    hints = get_type_hints(spec, include_extras=True)
    for field in fields(spec):
        name, kind = f"{group}.{field.name}" if group else field.name, _inner(hints[field.name])
        if isinstance(kind, type) and is_dataclass(kind):
            yield from keys_of(name, kind)
        elif name not in _DERIVED:
            yield _key(name, hints[field.name], field)


def _inner(hint: Any) -> Any:
    """The type of a field that may be None."""
    kinds = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    return kinds[0]


def _key(name: str, hint: Any, field: Field[Any]) -> Key:
    (kinds, choices), meta = _values(hint), field_meta(hint)
    about = "; ".join(filter(None, (meta.description or _about(name), allowed_range(meta))))
    kind = meta.title or "|".join(kinds)
    return Key(name=name, default=_default(field), choices=choices, kind=kind, about=about)


_KINDS = {int: "N", float: "X", str: "TEXT", tuple: "LIST", dict: "MAPPING"}


def _values(hint: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Kinds of values, then words, that a type takes."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _values(get_args(hint)[0])
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
    """What a feature or a constant of a machine is, by its row in their tables."""
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
    Key(name="engine.best", default="false", choices=_YES_NO, about="every feature that the machine has"),
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
    Key(name="wait", default="false", choices=_YES_NO, about="until no other process is timing on this host"),
)
OF_SUITES: tuple[Key, ...] = (
    Key(name="tasks", default="null", kind="LIST", about="of the suite, these tasks alone"),
    Key(name="limit", default="null", kind="N", about="questions of each task"),
    Key(name="data_dir", default="null", kind="FOLDER", about="local files of the suite's data"),
    Key(name="confirm_unsafe", default="false", choices=_YES_NO, about="run programs that a model wrote, sandboxed"),
)


T = TypeVar("T")
_NOTHING = {"null": None}


def allowed_range(meta: Meta) -> str:
    """`0 to 65535`, `at least 1`, `above 0`; empty without a limit."""
    least, above, most = ("" if one is None else str(one) for one in (meta.ge, meta.gt, meta.le))
    if most:
        return f"{least} to {most}" if least else f"above {above} up to {most}"
    return f"at least {least}" if least else f"above {above}" if above else ""


def take_arguments(verb: str, words: Sequence[str], kind: type[T], prefix: str = "") -> tuple[list[str], T]:
    """The words that set no field of `kind`, and the object of those that do, `PREFIXFIELD=VALUE`.

    Raises RequestError for an unknown key with the prefix, for a key that is given twice or without a value, for what
    is missing, and for a value of another type or out of range. Only numbers are repeated: a text may be a secret.
    """
    names, head = [prefix + field.name for field in fields(kind)], "" if prefix else f"{verb} "  # type: ignore[arg-type]
    given, rest = dict[str, str | None](), list[str]()
    for word in words:
        key, equals, value = word.partition("=")
        if key not in names and prefix and word.startswith(prefix):
            raise RequestError(f"{key}: unknown key{instead(key, names)}")
        if key not in names or not equals:
            rest.append(word)
            continue
        if key in given:
            raise RequestError(f"{head}{key}: is given twice")
        if not value.strip():
            raise RequestError(f"{head}{key}=: give it a value")
        given[key] = _NOTHING.get(value, value if prefix else value.strip("'\""))
    return rest, _converted(verb, given, kind, prefix)


def only_arguments(verb: str, words: Sequence[str], kind: type[T]) -> T:
    """The object that words make, all of which have to set a field. Raises RequestError as `take_arguments`."""
    rest, made = take_arguments(verb, words, kind)
    if rest:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        raise RequestError(f"{verb} {rest[0]}: unknown argument{instead(rest[0].partition('=')[0], names)}")
    return made


def _converted(verb: str, given: dict[str, str | None], kind: type[T], prefix: str) -> T:
    head = "" if prefix else f"{verb} "
    try:
        made = msgspec.convert({key.removeprefix(prefix): value for key, value in given.items()}, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):
            raise RequestError(str(error.__cause__)) from None
        what, _, name = str(error).replace("`", "").partition(" - at $.")
        if not name:
            raise RequestError(f"{verb}: {_missing(what, kind)}") from None
        raise RequestError(f"{head}{_refused(prefix + name, given[prefix + name], kind, name, what)}") from None
    for field in fields(kind):  # type: ignore[arg-type]
        value = getattr(made, field.name)
        if isinstance(value, float) and not isfinite(value):
            raise RequestError(f"{head}{prefix}{field.name}={value}: must be a finite number")
    return made


def _refused(key: str, value: str | None, kind: type[Any], name: str, what: str) -> str:
    """`serve.port=65536: must be a whole number, 0 to 65535`."""
    hint = get_type_hints(kind, include_extras=True)[name]
    if _inner(get_args(hint)[0] if get_origin(hint) is Annotated else hint) is bool:
        return f"{key}={value}: allowed are true and false"
    (kinds, _), limit = _values(hint), allowed_range(field_meta(hint))
    number = {"N": "must be a whole number", "X": "must be a number"}.get("".join(kinds))
    return f"{key}={value}: {number}, {limit}" if number else f"{key}: {what[0].lower()}{what[1:]}"


def _missing(what: str, kind: type[Any]) -> str:
    """Of a field that is missing an example, if it has one."""
    name = what.rpartition("field ")[2]
    hints = get_type_hints(kind, include_extras=True)
    examples = field_meta(hints[name]).examples if name in hints else None
    return f"needs {name}=" + (f", such as {' or '.join(map(str, examples))}" if examples else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeArguments:
    """The keys of `probe`."""

    out: Annotated[str | None, Meta(title="FILE", description="where to write; null: runs/machine-ID.yaml")] = None
    wait: Annotated[bool, Meta(description="until no other process is timing on this host")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceArguments:
    """The keys of `advise`."""

    cpu: Annotated[
        str, Meta(description="a processor of the catalogue, or here", examples=['cpu="EPYC 9355"', "cpu=here"])
    ]
    model: Annotated[str, Meta(description="a model of `ktbench list models`", examples=["model=deepseek_v3"])]
    sockets: Annotated[int, Meta(ge=1, description="processors of that kind, 1 where none is named")] | None = None
    ram: Annotated[str | None, Meta(description="all modules, such as 24x32 DDR5-6400 [at 5600]")] = None
    gpu: Annotated[str | None, Meta(description="a card of the catalogue, 2x NAME for two")] = None
    context: Annotated[int, Meta(ge=1, description="tokens before the one that is decoded")] = 4096
    target: Annotated[float, Meta(gt=0, description="tokens/s that decode should reach")] | None = None
    budget: Annotated[float, Meta(gt=0, description="what an upgrade may cost")] | None = None
    prices: Annotated[str | None, Meta(title="FILE", description="prices of upgrades and their currency")] = None
    out: Annotated[str | None, Meta(title="FILE", description="where to write the machine's description")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationArguments:
    """The keys of `validate`."""

    fit: Annotated[bool, Meta(description="fit the constants first")] = False
    users: Annotated[bool, Meta(description="judge on speeds that users report")] = False
    run: Annotated[str | None, Meta(title="RUN", description="judge on the measured cells of runs, A,B,…")] = None
    out: Annotated[str | None, Meta(title="FOLDER", description="where to write")] = None

    def __post_init__(self) -> None:
        if self.run is not None and self.users:
            raise ValueError("validate users=true: excludes run=RUN, leave one of them out")
