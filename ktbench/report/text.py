"""How scores and changes are written, and words for counts and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ktbench.results.quantities.text import DASH, number
from ktbench.results.scores import Change, Estimate, ScoreVerdict
from ktbench.spec.machine import BY_NAME as CONSTANTS

SURE_MARK = "*"  # beside a change that is beyond noise
_LEAST_P = 1e-4


def score_text(score: Estimate | None) -> str:
    """`93.1 ± 0.7`, in percent with the standard error; a question mark where one task has a single question."""
    if score is None:
        return DASH
    return f"{100 * score.mid:.1f} ± {'?' if score.se is None else f'{100 * score.se:.1f}'}"


def score_interval_text(score: Estimate | None) -> str:
    """`93.1 ± 0.7 [91.5, 94.4]`: with its 95 % interval, where there is one."""
    if score is None or score.low is None or score.high is None:
        return score_text(score)
    return f"{score_text(score)} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def change_text(change: Estimate | None) -> str:
    """`-0.5 [-1.2, +0.3]`: a hundred times the difference with its 95 % interval."""
    if change is None:
        return DASH
    ends = "" if change.low is None or change.high is None else f" [{signed(change.low)}, {signed(change.high)}]"
    return f"{signed(change.mid)}{ends}"


def signed(value: float) -> str:
    """A share in percent with its sign; nothing is 0.0."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def flips_text(change: Change | None) -> str:
    """`-14/+8`: so many questions score lower, so many higher."""
    return DASH if change is None else f"-{change.flips.lost}/+{change.flips.gained}"


def p_text(change: Change | None) -> str:
    """Two significant digits, `<0.0001` below that."""
    if change is None:
        return DASH
    return f"<{_LEAST_P:.4f}" if change.flips.p < _LEAST_P else f"{change.flips.p:.2g}"


def relative_text(change: Change | None) -> str:
    """`-3.4*`: the change in percent alone, marked where it is beyond noise."""
    if change is None or change.relative is None:
        return DASH
    mark = "" if change.verdict is ScoreVerdict.NONE_SHOWN else SURE_MARK
    return f"{signed(change.relative.mid)}{mark}"


def spread_text(value: Estimate, scale: float = 1.0) -> str:
    """`12.3 [11.8, 12.9]`: four significant digits with the 95 % interval, where there is one."""
    if value.low is None or value.high is None:
        return number(value.mid * scale)
    return f"{number(value.mid * scale)} [{number(value.low * scale)}, {number(value.high * scale)}]"


def error_text(value: Estimate, scale: float = 1.0) -> str:
    """`0.0123 ± 0.0004`: three significant digits with the standard error, where there is one."""
    return number(value.mid * scale, 3) + ("" if value.se is None else f" ± {number(value.se * scale, 2)}")


K = TypeVar("K")


def counted(count: int, word: str) -> str:
    """`1 core`, `2 cores`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def names_by(pairs: Iterable[tuple[str, K]]) -> dict[K, list[str]]:
    """Of (name, value) for each value all names that have it, each name once."""
    found: dict[K, dict[str, None]] = {}
    for name, value in pairs:
        found.setdefault(value, {})[name] = None
    return {value: [*names] for value, names in found.items()}


_LONGEST_REASON, _MOST_NAMES = 80, 4
_LACKING = "UNSUPPORTED"
_OF_FEATURE = re.compile(r"^\+\w+: ")


def not_drawn(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Of (name, reason) a sentence on what cannot run here, and one on what ran and is not drawn.

    Reasons are cut to what is lacking: a table's notes have them whole.
    """
    found: dict[str, list[str]] = {"Not run here": [], "Not drawn": []}
    for reason, names in names_by((name, _brief(reason)) for name, reason in pairs).items():
        lacks = reason.startswith(_LACKING)
        word = reason.removeprefix(_LACKING).strip(",: ") if lacks else reason
        found["Not run here" if lacks else "Not drawn"].append(
            some(names) if word in names else f"{some(names)} ({word})"
        )
    return tuple(f"{how}: {'; '.join(what)}." for how, what in found.items() if what)


def _brief(reason: str) -> str:
    """`UNSUPPORTED, one NUMA node` of what names the feature that needs more and how to get it."""
    if not reason.startswith(_LACKING):
        return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"
    parts = reason.removeprefix(_LACKING).strip(",: ").split("; ")
    of_features = [part for part in parts if _OF_FEATURE.match(part)] or parts  # the others say how to get it
    lacking = (_OF_FEATURE.sub("", part).partition(": ")[0].partition(" (")[0] for part in of_features)
    return f"{_LACKING}, {'; '.join(dict.fromkeys(lacking))}"


def some(names: Sequence[str]) -> str:
    """The first names, and how many others there are."""
    shown, more = names[:_MOST_NAMES], len(names) - _MOST_NAMES
    return ", ".join(shown) + (f" and {counted(more, 'other')}" if more > 0 else "")


def extremes(values: Iterable[float]) -> list[float]:
    """The least and the most of some values, or the one that all are; nothing without values."""
    found = {*values}
    return sorted({min(found), max(found)}) if found else []


def span(low: float, high: float) -> str:
    """`440`, `220 to 440`: three significant digits."""
    return number(high, 3) if low == high else f"{number(low, 3)} to {number(high, 3)}"


_SETTINGS = {
    "engine.placement.ratio": "share of the experts at the device",
    "engine.serving.chunk_tokens": "tokens of a chunk",
    "workload.batch": "sequences in a batch",
    "workload.prompt": "tokens of context",
    "workload.stream.concurrency": "users",
    "workload.stream.rate": "requests a second",
}


def setting_name(key: str) -> str:
    """What a dotted key sets, in words, as axes and headings of papers have it."""
    group, _, name = key.rpartition(".")
    if group == "machine" and name in CONSTANTS:
        constant = CONSTANTS[name]
        return ", ".join(filter(None, (constant.title, constant.unit)))
    return _SETTINGS.get(key, name.replace("_", " "))
