"""What curve figures show, how curves look, and their panels side by side below a common legend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ktbench.report.conditions import arm_namer, ringed_outcome
from ktbench.report.figures.frame import Frame
from ktbench.report.figures.roofs import roof_handle
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    LEFT_IN,
    PAGE_IN,
    PLOT_IN,
    WHISKER,
    Mark,
    PanelGrid,
    Sheet,
    balanced,
    mark,
    reach,
)
from ktbench.report.text import not_drawn
from ktbench.results.row import Row, groups_of, roof_rows
from ktbench.results.settings import TOKENS, group_by, shown_setting, varying, without_precision
from ktbench.results.usage import Spread
from ktbench.spec.machine import BY_NAME as CONSTANTS
from ktbench.spec.record import Outcome
from ktbench.spec.sweep import PRECISIONS
from ktbench.spec.weights import Precision

_NAMES = {
    "engine.placement.ratio": "share of the experts at the device",
    "engine.serving.chunk_tokens": "tokens of a chunk",
    "workload.batch": "sequences in a batch",
    "workload.prompt": "tokens of context",
    "workload.stream.concurrency": "users",
    "workload.stream.rate": "requests a second",
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
    """What `mark` shows at `x` of the axis; where it has no interval, the ends of `y` are its middle.

    `ring` is the outcome that a ring around it stands for.
    """

    x: float
    y: Spread
    mark: Mark
    ring: Outcome | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """An arm, in order of `x`. `name` leaves out what the panel's title says."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePanel:
    """The arms of one precision. `references` are the baseline where its precision is another one, `rows` all arms.

    `settings` are those of no other panel, such as the model where each has a precision of its own.
    """

    precision: Precision
    settings: tuple[str, ...]
    curves: tuple[Curve, ...]
    references: tuple[Curve, ...]
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """Settings and precision."""
        return ", ".join([*self.settings, f"{self.precision} weights"])

    @property
    def points(self) -> list[Point]:
        """Points of arms and references."""
        return [point for curve in (*self.curves, *self.references) for point in curve.points]


def panels_of(rows: Sequence[Row], value: Value, axis: Axis = TOKENS_AXIS) -> tuple[CurvePanel, ...]:
    """Panels in the order of precisions, those without a point left out, but never all of them."""
    arms = [row for row in rows if row.role == "arm"]
    names, ringed = _Names.of(rows, axis), ringed_outcome(rows)
    baseline = [row for row in arms if row.is_baseline]
    panels = []
    for precision in PRECISIONS:
        own = [row for row in arms if row.spec.precision == precision]
        others = [] if any(row.is_baseline for row in own) else baseline
        suffix = f", {baseline[0].spec.precision}" if baseline else ""
        curves = tuple(_curves(own, names, value, ringed))
        references = tuple(_curves(others, names, value, ringed, suffix))
        if own:
            settings = tuple(_setting(key, own[0]) for key in names.titled)
            panels.append(
                CurvePanel(
                    precision=precision, settings=settings, curves=curves, references=references, rows=tuple(own)
                )
            )
    return tuple(panel for panel in panels if panel.curves) or tuple(panels[:1])


def absences(rows: Sequence[Row], value: Value, axis: Axis = TOKENS_AXIS) -> tuple[str, ...]:
    """For each reason the arms that are not drawn for it, with the places on the axis where others of theirs are."""
    arms = [row for row in rows if row.role == "arm"]
    names = _Names.of(rows, axis)
    drawn = {names.whole(row) for row in arms if value(row) is not None}
    holders = group_by((reason_of(row), (names.whole(row), axis.of(row))) for row in arms if value(row) is None)
    return not_drawn(
        (f"{name} at {', '.join(f'{x:g}' for x in at)}" if name in drawn else name, reason)
        for reason, held in holders.items()
        for name, at in group_by(held).items()
    )


def _curves(
    rows: Sequence[Row], names: _Names, value: Value, ringed: Outcome | None, suffix: str = ""
) -> Iterator[Curve]:

    def point(row: Row, y: Spread) -> Point:
        ring = ringed if row.outcome is ringed else None
        return Point(x=names.axis.of(row), y=y, mark=Mark(key=(row.cell,)), ring=ring)

    values = [(row, y) for row in rows if (y := value(row)) is not None]
    found = group_by((names.short(row) + suffix, point(row, y)) for row, y in values)
    for name, points in found.items():
        yield Curve(name=name, points=tuple(sorted(points, key=lambda point: point.x)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """What distinguishes curves: their arm, unless there is only one, and the settings `free` that vary beside it.

    A precision that varies is named (`precise`) only where no panel names it, and so are settings that vary with it
    alone (`titled`).
    """

    axis: Axis
    named: Callable[[Row], str]
    titled: tuple[str, ...]
    free: tuple[str, ...]
    worded: bool
    precise: bool

    @classmethod
    def of(cls, rows: Sequence[Row], axis: Axis) -> _Names:
        groups = [group[0].settings for group in groups_of(rows)]
        keys = varying(groups)
        others = [key for key in keys if key not in (axis.key, "precision")]
        titled = tuple(key for key in others if _is_of_the_precision(key, rows))
        free = tuple(key for key in others if key not in titled)
        arms = {row.shown for row in rows if row.role == "arm"}
        return cls(
            axis=axis,
            named=arm_namer(rows),
            titled=titled,
            free=free,
            worded=len(arms) > 1 or not free,
            precise="precision" in keys,
        )

    def short(self, row: Row) -> str:
        """Without what the panel says."""
        return self._joined(without_precision(self.named(row)), self.free, row)

    def whole(self, row: Row) -> str:
        name = self._joined(self.named(row), self.titled + self.free, row)
        return f"{name} in {row.spec.precision}" if self.precise else name

    def _joined(self, label: str, keys: Sequence[str], row: Row) -> str:
        settings = [_setting(key, row) for key in keys]
        return ", ".join([label, *settings] if self.worded else settings)


def _is_of_the_precision(key: str, rows: Sequence[Row]) -> bool:
    """Whether rows of one precision agree on a setting."""
    values = {(row.spec.precision, row.settings.get(key)) for row in rows}
    return len(values) == len({precision for precision, _ in values})


def _setting(key: str, row: Row) -> str:
    value = row.settings.get(key)
    return shown_setting(key, value) if key in ("model", "machine") else f"{key.rpartition('.')[2]} {value}"


def reason_of(row: Row) -> str:
    """Why a row is not drawn."""
    if row.timed:
        return "; ".join(dict.fromkeys(row.missing.values()))
    return f"{row.outcome or 'not measured'}, {row.why}"


def axis_of(rows: Sequence[Row]) -> Axis:
    """The varying setting with the most numbers, the first of equals; the context where none varies."""
    groups = [group[0].settings for group in groups_of(rows)]
    counts = {key: len({settings.get(key) for settings in groups}) for key in varying(groups)}
    numeric = [key for key in counts if all(_is_number(settings.get(key)) for settings in groups)]
    key = max(numeric, key=lambda key: counts[key], default="workload.prompt")
    if key == "workload.prompt" and rows[0].spec.workload.phase == "prefill":
        return Axis(key=key, name="tokens of the prompt")
    group, _, name = key.rpartition(".")
    if group == "machine" and name in CONSTANTS:
        constant = CONSTANTS[name]
        return Axis(key=key, name=", ".join(filter(None, (constant.title, constant.unit))))
    return Axis(key=key, name=_NAMES.get(key, name.replace("_", " ")))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def names_of(panels: Sequence[CurvePanel]) -> list[str]:
    """Names of the curves of all panels, in order of appearance."""
    return list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))


REFERENCE = "#8c8c8c"
# Shades that differ in grey, a brown where a blue would be too like another; markers that differ in shape, every second
# one hollow: an arm that hides another shows it.
_SHADES = ("#7d7d7d", "#1d3f5e", "#5d93c4", "#000000", "#9c4a00", "#9dbdda", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH, _SIZE, _RING = 1.0, 3.4, 6.4
CROWDED = 24  # with more points on a curve its marks are smaller
_CURVE_IN = 0.02  # a curve must not be covered: wider than it is


def draw_curves(frame: Frame, panel: CurvePanel, names: Sequence[str], *, bands: bool = False) -> None:
    """Draw the curves of a panel; `names` are those of all panels and decide how each looks.

    Intervals are whiskers, with `bands` also shaded from point to point.
    """
    for curve in panel.references:
        xs, ys = [point.x for point in curve.points], [point.y.mid for point in curve.points]
        alone = "_" if len(xs) == 1 else "None"
        (line,) = frame.axes.plot(xs, ys, color=REFERENCE, linewidth=0.6, marker=alone, markersize=_RING, zorder=2)
        if alone == "_":
            mark(line, *(point.mark for point in curve.points))
        frame.take_line(list(zip(xs, ys, strict=True)))
    look_of = looks(names)
    for curve in panel.curves:
        draw_curve(frame.axes, curve.points, look_of[curve.name], bands=bands)
        frame.take_line([(point.x, point.y.mid) for point in curve.points], _CURVE_IN)
        for point in curve.points:
            frame.take_marker((point.x, point.y.mid))
            frame.take_line([(point.x, point.y.low), (point.x, point.y.high)])


def name_references(frame: Frame, panel: CurvePanel) -> None:
    """Write the names of references at the level of their right ends, or along their first half."""
    for curve in panel.references:
        first, middle, last = curve.points[0], curve.points[len(curve.points) // 2], curve.points[-1]
        rising = ((first.x, first.y.mid), (middle.x, middle.y.mid))
        level = ((middle.x, last.y.mid), (last.x, last.y.mid))
        frame.label(curve.name, *level, REFERENCE, also=(rising,) if len(curve.points) > 2 else ())


def handles(names: Sequence[str], ring: Outcome | None = None) -> list[Artist]:
    """Legend entries of curves, and of the ring around values of an outcome."""
    entries: list[Artist] = [Line2D([], [], label=name, **look) for name, look in looks(names).items()]
    return [*entries, Line2D([], [], label=ring, linestyle="", **_RINGED)] if ring else entries


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How curves look by their names.

    The first look is kept for base, so that the other arms look alike in figures with and without it.
    """
    base = next((name for name in names if name.startswith("base")), None)
    others = [name for name in names if name != base]
    return {name: _look(0 if name == base else others.index(name) + 1) for name in names}


def draw_curve(axes: Axes, points: Sequence[Point], look: dict[str, Any], *, bands: bool) -> None:
    """Draw a marker for each point, its whiskers, a ring where it has one, and with `bands` the shaded intervals."""
    xs, ys = [point.x for point in points], [point.y.mid for point in points]
    if bands:
        lows, highs = [point.y.low for point in points], [point.y.high for point in points]
        axes.fill_between(xs, lows, highs, color=look["color"], alpha=0.14, linewidth=0, zorder=1.5)
    size = 0.5 if len(points) > CROWDED else 1.0
    look = look | {"markersize": size * _SIZE}
    drawn = axes.errorbar(xs, ys, reach([point.y for point in points]), zorder=3, **WHISKER, **look)
    mark(drawn.lines[0], *(point.mark for point in points))
    ringed = [(point.x, point.y.mid) for point in points if point.ring]
    if ringed:
        ring = _RINGED | {"markersize": size * _RING}
        axes.plot(*zip(*ringed, strict=True), linestyle="", zorder=4, **ring)


def _look(number: int) -> dict[str, Any]:
    shade = _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": _WIDTH,
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": _SIZE,
        "markerfacecolor": "white" if number % 2 == 0 else shade,
        "markeredgewidth": 0.8,
    }


_RINGED: dict[str, Any] = {
    "marker": "o",
    "markersize": _RING,
    "markerfacecolor": "none",
    "markeredgecolor": REFERENCE,
    "markeredgewidth": 0.4,
}


_ABREAST = 4


def place_panels(
    panels: Sequence[CurvePanel],
    rows: Sequence[Row],
    caption: Sequence[str],
    titles: Sequence[str],
    y_name: str,
    *,
    shared: bool,
) -> tuple[Sheet, list[Axes]]:
    """A figure with titled axes for each panel; `y_name` stands beside the leftmost ones.

    `shared`: one y axis for panels abreast. The roofs of `rows` stand in the legend.
    """
    layout = PanelGrid(
        count=len(panels),
        columns=balanced(len(panels), _ABREAST),
        tall_in=PLOT_IN,
        above_in=0.15,
        below_in=0.34,
        width_in=COLUMN_IN if len(panels) == 1 else PAGE_IN,
        gap_in=0.12 if shared else LEFT_IN - 0.1,
    )
    figure, every = layout.draw(titles, caption, _entries(panels, rows))
    for n, axes in enumerate(every):
        axes.set_ylabel(y_name if layout.is_leftmost(n) else "")
    return figure, every


def _entries(panels: Sequence[CurvePanel], rows: Sequence[Row]) -> list[Artist]:
    points = (point for panel in panels for curve in panel.curves for point in curve.points)
    entries = handles(names_of(panels), next((point.ring for point in points if point.ring), None))
    provenance = next(
        (row.provenance for row in roof_rows(rows) if row.provenance and "roof_share" in row.values), None
    )
    return [*entries, roof_handle(provenance)] if provenance else entries
