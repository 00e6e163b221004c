"""What a curve figure shows: a panel for each precision, a line for each arm over tokens per expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ktbench.core.arms import PRECISIONS
from ktbench.core.outcome import Outcome
from ktbench.core.spec import Precision
from ktbench.report.roof import Spread
from ktbench.report.row import Row, groups_of
from ktbench.report.settings import TOKENS, varying, without_precision

# What a row shows: its value with the ends of its interval; None where it has none.
Value = Callable[[Row], Spread | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A row at `x` tokens per expert."""

    x: float
    y: Spread
    noisy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """An arm, in order of tokens per expert. `name` leaves out the precision, which the panel says."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePanel:
    """The arms of one precision. `references` are the baseline where its precision is another one, `rows` all arms."""

    precision: Precision
    curves: tuple[Curve, ...]
    references: tuple[Curve, ...]
    rows: tuple[Row, ...]

    @property
    def points(self) -> list[Point]:
        """Points of arms and references."""
        return [point for curve in (*self.curves, *self.references) for point in curve.points]


def panels_of(rows: Sequence[Row], value: Value) -> tuple[CurvePanel, ...]:
    """Panels in the order of precisions, those without a point left out, but never all of them."""
    arms = [row for row in rows if row.role == "arm"]
    free = _other_settings(rows)
    baseline = [row for row in arms if row.is_baseline]
    panels = []
    for precision in PRECISIONS:
        own = [row for row in arms if row.spec.precision == precision]
        others = [row for row in baseline if row.spec.precision != precision]
        curves = tuple(_curves(own, free, value))
        references = tuple(_curves(others, free, value, f", {baseline[0].spec.precision}" if baseline else ""))
        if own:
            panels.append(CurvePanel(precision=precision, curves=curves, references=references, rows=tuple(own)))
    return tuple(panel for panel in panels if panel.curves) or tuple(panels[:1])


def absences(rows: Sequence[Row], value: Value) -> tuple[str, ...]:
    """For each reason the arms that are not drawn for it, with the tokens per expert where others of theirs are."""
    arms = [row for row in rows if row.role == "arm"]
    free = _other_settings(rows)
    holders: dict[str, dict[str, list[float]]] = {}
    drawn = {_name(row, free, row.shown) for row in arms if value(row) is not None}
    for row in (row for row in arms if value(row) is None):
        at = holders.setdefault(_reason(row), {}).setdefault(_name(row, free, row.shown), [])
        at.append(row.spec.tokens_per_expert)
    return tuple(_absence(reason, names, drawn) for reason, names in holders.items())


def _curves(rows: Sequence[Row], free: Sequence[str], value: Value, suffix: str = "") -> Iterator[Curve]:
    found: dict[str, list[Point]] = {}
    for row in rows:
        y = value(row)
        if y is not None:
            point = Point(x=row.spec.tokens_per_expert, y=y, noisy=row.outcome is Outcome.NOISY)
            found.setdefault(_name(row, free, without_precision(row.shown)) + suffix, []).append(point)
    for name, points in found.items():
        yield Curve(name=name, points=tuple(sorted(points, key=lambda point: point.x)))


def _other_settings(rows: Sequence[Row]) -> tuple[str, ...]:
    keys = varying([group[0].settings for group in groups_of(rows)])
    return tuple(key for key in keys if key != TOKENS)


def _name(row: Row, free: Sequence[str], label: str) -> str:
    return ", ".join([label, *(f"{key.rpartition('.')[2]} {row.settings.get(key)}" for key in free)])


def _reason(row: Row) -> str:
    if row.timed:
        return "; ".join(dict.fromkeys(row.missing.values()))
    return f"{row.outcome or 'not measured'}, {row.why}"


def _absence(reason: str, names: dict[str, list[float]], drawn: set[str]) -> str:
    words = [f"{name} at {', '.join(f'{x:g}' for x in at)}" if name in drawn else name for name, at in names.items()]
    return f"Not drawn: {', '.join(words)} ({reason})."
