"""Average score and its change over the format of the experts and of the device role, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.accuracy.text import relative_text, score_text
from ktbench.report.text import DASH
from ktbench.results.accuracy import AccuracyRow
from ktbench.spec.arms import PRECISIONS


def by_formats(rows: Sequence[AccuracyRow]) -> dict[tuple[str, str], AccuracyRow]:
    """The first row at each format of the experts and of the device role."""
    found: dict[tuple[str, str], AccuracyRow] = {}
    for row in rows:
        found.setdefault((row.row.spec.precision, row.row.spec.device_precision), row)
    return found


def formats_of(rows: Sequence[AccuracyRow]) -> tuple[list[str], list[str]]:
    """Formats of the experts, and of the device role."""
    experts, devices = ({place[n] for place in by_formats(rows)} for n in (0, 1))
    return [name for name in PRECISIONS if name in experts], [name for name in PRECISIONS if name in devices]


def arm_of_formats(rows: Sequence[AccuracyRow]) -> str:
    """` (arm +v+d)` where rows of other arms have the same formats and are left out; else empty."""
    shown = by_formats(rows).values()
    names = dict.fromkeys(row.row.shown for row in shown)
    return f" (arm {', '.join(names)})" if len(shown) < len(rows) else ""


def grid_lines(rows: Sequence[AccuracyRow]) -> tuple[tuple[str, ...], ...]:
    """A line for each format of the experts, `93.1 ± 0.7 (-0.4)` at each of the device role."""
    (experts, devices), found = formats_of(rows), by_formats(rows)
    return tuple((name, *(_text(found.get((name, device))) for device in devices)) for name in experts)


def _text(row: AccuracyRow | None) -> str:
    result = None if row is None else row.result()
    if result is None or result.score is None:
        return DASH
    change = relative_text(result.change)
    return score_text(result.score) + ("" if change == DASH else f" ({change})")
