"""What a curve figure shows: a panel for each precision, a line for each arm over one setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ktbench.results.row import Row, groups_of
from ktbench.results.settings import TOKENS, varying, without_precision
from ktbench.results.usage import Spread
from ktbench.spec.arms import PRECISIONS
from ktbench.spec.record import Outcome
from ktbench.spec.weights import Precision

_NAMES = {
    "engine.placement.ratio": "share of the experts at the device",
    "workload.batch": "sequences in a batch",
    "workload.prompt": "tokens of context",
}
# What a row shows: its value with the ends of its interval; None where it has none.
Value = Callable[[Row], Spread | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What `x` is: the setting `key`, with the name that stands below the panels."""

    key: str
    name: str

    def of(self, row: Row) -> float:
        """The setting's value."""
        value = row.settings[self.key]
        assert isinstance(value, int | float), f"{self.key}={value} is no number to draw a curve over"
        return value


TOKENS_AXIS = Axis(key=TOKENS, name=TOKENS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A row at `x` of the axis."""

    x: float
    y: Spread
    noisy: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """An arm, in order of `x`. `name` leaves out the precision, which the panel says."""

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


def panels_of(rows: Sequence[Row], value: Value, axis: Axis = TOKENS_AXIS) -> tuple[CurvePanel, ...]:
    """Panels in the order of precisions, those without a point left out, but never all of them."""
    arms = [row for row in rows if row.role == "arm"]
    names = _Names.of(rows, axis)
    baseline = [row for row in arms if row.is_baseline]
    panels = []
    for precision in PRECISIONS:
        own = [row for row in arms if row.spec.precision == precision]
        others = [] if any(row.is_baseline for row in own) else baseline
        curves = tuple(_curves(own, names, value))
        references = tuple(_curves(others, names, value, f", {baseline[0].spec.precision}" if baseline else ""))
        if own:
            panels.append(CurvePanel(precision=precision, curves=curves, references=references, rows=tuple(own)))
    return tuple(panel for panel in panels if panel.curves) or tuple(panels[:1])


def absences(rows: Sequence[Row], value: Value, axis: Axis = TOKENS_AXIS) -> tuple[str, ...]:
    """For each reason the arms that are not drawn for it, with the places on the axis where others of theirs are."""
    arms = [row for row in rows if row.role == "arm"]
    names = _Names.of(rows, axis)
    holders: dict[str, dict[str, list[float]]] = {}
    drawn = {names.whole(row) for row in arms if value(row) is not None}
    for row in (row for row in arms if value(row) is None):
        at = holders.setdefault(reason_of(row), {}).setdefault(names.whole(row), [])
        at.append(axis.of(row))
    return tuple(_absence(reason, held, drawn) for reason, held in holders.items())


def _curves(rows: Sequence[Row], names: _Names, value: Value, suffix: str = "") -> Iterator[Curve]:
    found: dict[str, list[Point]] = {}
    for row in rows:
        y = value(row)
        if y is not None:
            point = Point(x=names.axis.of(row), y=y, noisy=row.outcome is Outcome.NOISY)
            found.setdefault(names.short(row) + suffix, []).append(point)
    for name, points in found.items():
        yield Curve(name=name, points=tuple(sorted(points, key=lambda point: point.x)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """What tells curves apart: their arm, unless there is only one, and the settings `free` that vary beside it.

    Where the precision varies that is said (`precise`) only where no panel says it.
    """

    axis: Axis
    free: tuple[str, ...]
    worded: bool
    precise: bool

    @classmethod
    def of(cls, rows: Sequence[Row], axis: Axis) -> _Names:
        keys = varying([group[0].settings for group in groups_of(rows)])
        free = tuple(key for key in keys if key not in (axis.key, "precision"))
        arms = {row.shown for row in rows if row.role == "arm"}
        return cls(axis=axis, free=free, worded=len(arms) > 1 or not free, precise="precision" in keys)

    def short(self, row: Row) -> str:
        """Without the precision, which the panel says."""
        return self._joined(without_precision(row.shown), row)

    def whole(self, row: Row) -> str:
        name = self._joined(row.shown, row)
        return f"{name} in {row.spec.precision}" if self.precise else name

    def _joined(self, label: str, row: Row) -> str:
        settings = [f"{key.rpartition('.')[2]} {row.settings.get(key)}" for key in self.free]
        return ", ".join([label, *settings] if self.worded else settings)


def reason_of(row: Row) -> str:
    """Why a row is not drawn."""
    if row.timed:
        return "; ".join(dict.fromkeys(row.missing.values()))
    return f"{row.outcome or 'not measured'}, {row.why}"


def _absence(reason: str, names: dict[str, list[float]], drawn: set[str]) -> str:
    words = [f"{name} at {', '.join(f'{x:g}' for x in at)}" if name in drawn else name for name, at in names.items()]
    return f"Not drawn: {', '.join(words)} ({reason})."


def axis_of(rows: Sequence[Row]) -> Axis:
    """The varying setting with the most numbers, the first of equals; the context where none varies."""
    groups = [group[0].settings for group in groups_of(rows)]
    counts = {key: len({settings.get(key) for settings in groups}) for key in varying(groups)}
    numeric = [key for key in counts if all(_is_number(settings.get(key)) for settings in groups)]
    key = max(numeric, key=lambda key: counts[key], default="workload.prompt")
    if key == "workload.prompt" and rows[0].spec.workload.phase == "prefill":
        return Axis(key=key, name="tokens of the prompt")
    return Axis(key=key, name=_NAMES.get(key, key.rpartition(".")[2].replace("_", " ")))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def names_of(panels: Sequence[CurvePanel]) -> list[str]:
    """Names of the curves of all panels, in order of appearance."""
    return list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
