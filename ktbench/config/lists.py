"""Comma lists on a command line, in Hydra's syntax for sweeps: each is an axis of its key."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException

from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import part_name

PRECISION_KEYS = ("precision", "device_precision")
# What an axis can vary: keys of a run's spec, and whole groups.
_ROOTS = ("workload", "engine", "system", "peer", *PRECISION_KEYS, "machine")
WHOLE_GROUPS = ("model", "machine")
# Keys whose one value is a list.
_LISTS = ("sweep.arms", "sweep.features", "sweep.parts", "sweep.published", "tasks")
_MAX_VALUES = 256
_MOST_CHARACTERS = 10_000
_SHOWN = 200  # characters in a message
Lists = dict[str, list[Any]]
_QUOTED = {*"'\"[]{}()\\"}  # in a value that has a form of its own
_NO_OPTIONS = ("local", "null", "FILE.yaml")  # that stand beside the options of groups
_SHORT = {"int4": "int4_g32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitOverrides:
    """Overrides that compose, each list replaced by its first value, and all values of the lists by their keys."""

    overrides: tuple[str, ...]
    lists: Lists


def split_lists(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> SplitOverrides:
    """Overrides with their lists split off; of `groups`, those of Hydra, only a few can be on an axis.

    Raises RequestError for an invalid list, and as `parsed`.
    """
    words: list[str] = []
    lists: Lists = {}
    for word in overrides:
        override = parsed(word)
        if not override.is_sweep_override():
            words.append(word)
        elif override.key_or_group == "ablation":
            words += _parts(override, overrides, groups)
        else:
            _require_axis(override, groups, overrides)
            lists[override.key_or_group] = _values(override, groups)
            words.append(sweep_words(override, groups)[0])
    return SplitOverrides(overrides=tuple(words), lists=lists)


def key_of(word: str) -> str:
    """The key of an override."""
    return word.partition("=")[0].lstrip("+")


def with_letters(word: str) -> str:
    """An override with quotes around what Hydra's grammar has no letters for: `sweep.title='Größe'`."""
    key, equals, value = word.partition("=")
    if value.isascii() or _QUOTED & {*value}:
        return word
    parts = (part if part.isascii() else f"'{part}'" for part in value.split(","))
    return f"{key}{equals}{','.join(parts)}"


def parsed(word: str) -> Override:
    """An override by Hydra's grammar. Raises RequestError in one line for one that does not parse, or is too long."""
    if len(word) > _MOST_CHARACTERS:
        raise RequestError(f"override {word[:_SHOWN]!r}...: is longer than {_MOST_CHARACTERS:,} characters")
    if "=" not in word:
        raise RequestError(f"override {word!r}: expected KEY=VALUE")
    try:
        return _parsed(word)
    except (HydraException, ValueError, RecursionError) as error:  # numbers of thousands of digits, lists of lists
        shown = repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."
        raise RequestError(f"override {shown} does not parse: {str(error).splitlines()[0][:_SHOWN]}") from None


@lru_cache(1024)
def _parsed(word: str) -> Override:
    return OverridesParser.create().parse_override(word)


def _require_axis(override: Override, groups: Container[str], overrides: Sequence[str]) -> None:
    key, root = override.key_or_group, override.key_or_group.partition(".")[0]
    if key in _LISTS:
        value = str(override.input_line).partition("=")[2]
        raise RequestError(f'{override.input_line}: is several values; as one list it is written "{key}=[{value}]"')
    if key not in WHOLE_GROUPS and (key in groups or root not in _ROOTS):
        raise RequestError(
            f"{override.input_line}: {key} takes one value, run sweep once for each; "
            f"lists are for keys of {', '.join(_ROOTS)}, for model and for ablations"
        )
    if sum(key_of(word) == key for word in overrides) > 1:
        raise RequestError(f"{override.input_line}: {key} is set twice")


def sweep_words(override: Override, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """`KEY=VALUE` of each value of a list, of `glob(PATTERN)` the options of its group. Raises as `_values`."""
    key = override.get_key_element()
    if isinstance(override.value(), Glob):
        return [f"{key}={name}" for name in _values(override, groups)]
    _require_discrete(override, groups)
    return [f"{key}={value}" for value in islice(override.sweep_string_iterator(), _MAX_VALUES + 1)]


def _require_discrete(override: Override, groups: Container[str]) -> None:
    if isinstance(override.value(), Glob) and override.key_or_group not in groups:
        why = f"{override.key_or_group} is no group, of whose options a pattern could choose"
    elif not override.is_discrete_sweep():
        why = "an interval has no values to take one after the other"
    else:
        return
    allowed = "A,B,C and range(START,STOP,STEP), choice(A,B,C), and for options of groups glob(PATTERN)"
    raise RequestError(f"{override.input_line}: {why}; allowed are {allowed}")


def _values(override: Override, groups: Mapping[str, Sequence[str]]) -> list[Any]:
    """The values of a list. Raises RequestError for a list that is invalid, empty or too long."""
    _require_discrete(override, groups)
    if isinstance(pattern := override.value(), Glob):
        values: list[Any] = pattern.filter(
            [one for one in groups.get(override.key_or_group, ()) if one not in _NO_OPTIONS]
        )
    else:
        values = [_plain(value) for value in islice(override.sweep_iterator(), _MAX_VALUES + 1)]
    if not 1 <= len(values) <= _MAX_VALUES:
        count = f"more than {_MAX_VALUES}" if values else "no"
        raise RequestError(f"{override.input_line}: has {count} values, allowed are 1 to {_MAX_VALUES}")
    return [precision_name(value) for value in values] if override.key_or_group in PRECISION_KEYS else values


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return value


def _parts(override: Override, overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """`+ablation=decode,prefill`: both as parts of one sweep, which is named after them."""
    names = [str(name) for name in _values(override, groups)]
    parts = [f"sweep.parts=[{','.join(names)}]"]
    named = any(key_of(word) == "sweep.name" for word in overrides)
    return parts if named else [*parts, f"sweep.name={'_'.join(map(part_name, names))}"]


def precision_name(word: Any) -> Any:
    """A precision by its name in specs: `int4` is that of the smallest groups. Anything else as it is."""
    return _SHORT.get(word, word) if isinstance(word, str) else word
