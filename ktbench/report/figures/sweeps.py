"""Curves over one setting: throughput and time of a layer over tokens per expert (KTransformers, SOSP'25, Fig. 3,
7), and speed over the setting that a sweep varies in most steps, such as the depth of the context; losses over the
steps of trainings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.curves import (
    CROWDED,
    REFERENCE,
    Curve,
    CurvePanel,
    absences,
    axis_of,
    draw_curves,
    handles,
    looks,
    name_references,
    names_of,
    panels_of,
    place_panels,
)
from ktbench.report.figures.frame import Frame, decades, fitted, is_wide, round_ticks
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.roofs import Rooflines, draw_read_time, draw_rooflines, name_roof, rooflines
from ktbench.report.figures.sheet import COLUMN_IN, LEFT_IN, PAGE_IN, PLOT_IN, Mark, PanelGrid, Sheet, mark, scaled
from ktbench.report.learning_table import learned_name, settings_shown
from ktbench.report.table import Table
from ktbench.report.text import not_drawn
from ktbench.results.quantities.text import number, unit_of
from ktbench.results.row import Row, roof_rows
from ktbench.results.settings import TOKENS
from ktbench.results.training.learning import Learned
from ktbench.results.usage import Spread, read_spread

_AROUND = 1.6  # left and right of the outermost points of throughput, as a factor
_HEADROOM, _FOOTROOM = 2.0, 1.6
_MARGIN, _AROUND_LOSS = 0.05, 1.1  # around losses: of their span, and as a factor


def draw_throughput(rows: Sequence[Row], table: Table) -> Sheet:
    """A panel for each precision, all to one scale, with the roofs of its arms."""
    caption = [table.figure_caption, *absences(rows, _throughput)]
    return _throughput_panels(panels_of(rows, _throughput), rows, caption)


def draw_throughput_change(before: Sequence[Row], after: Sequence[Row], caption: Sequence[str]) -> Sheet:
    """The throughput of run B with that of run A in grey."""
    old = {panel.precision: panel.curves for panel in panels_of(before, _throughput)}
    panels = [
        replace(panel, references=tuple(replace(one, name=f"{one.name}, A") for one in old.get(panel.precision, ())))
        for panel in panels_of(after, _throughput)
    ]
    return _throughput_panels(panels, after, caption)


def _throughput_panels(panels: Sequence[CurvePanel], rows: Sequence[Row], caption: Sequence[str]) -> Sheet:
    roofs = [rooflines(panel.rows, rows) for panel in panels]
    x, y = _throughput_range_x(panels), _throughput_range_y(panels, roofs)
    units = [dict.fromkeys(unit_of(row.spec.dtype) for row in panel.rows) for panel in panels]
    titles = [f"{panel.title} ({', '.join(of)})" for panel, of in zip(panels, units, strict=True)]
    figure, every = place_panels(panels, rows, caption, titles, "10¹² operations per second", shared=True)
    xs = sorted({point.x for panel in panels for point in panel.points})
    if len(xs) > CROWDED:
        xs = [x for x in xs if log2(x).is_integer()]
    for panel, roof, axes in zip(panels, roofs, every, strict=True):
        frame = Frame(axes=axes, x=x, y=y, x_name=TOKENS, log_x=True, log_y=True)
        frame.ticks(xs, decades(*y), named=bool(axes.get_ylabel()))
        _draw_throughput(frame, panel, roof, names_of(panels))
    return figure


def _draw_throughput(frame: Frame, panel: CurvePanel, roofs: Rooflines, names: Sequence[str]) -> None:
    """Labels come last, when all that they must not cover is there."""
    lines = draw_rooflines(frame, roofs)
    draw_curves(frame, panel, names)
    name_references(frame, panel)
    for line in reversed(lines):
        name_roof(frame, *line)


def _throughput(row: Row) -> Spread | None:
    """10¹² operations/s."""
    if row.step_s is None or row.work is None:
        return None
    return scaled(row.step_s.per(row.work.flops / 1e12))


def _throughput_range_x(panels: Sequence[CurvePanel]) -> XY:
    values = [point.x for panel in panels for point in panel.points] or [1.0]
    return min(values) / _AROUND, max(values) * _AROUND


def _throughput_range_y(panels: Sequence[CurvePanel], roofs: Sequence[Rooflines]) -> XY:
    """From below the slowest point to above the highest roof that the tokens per expert reach."""
    points = [point.y for panel in panels for point in panel.points]
    right = _throughput_range_x(panels)[1]
    reached = [
        peak.mid / 1e12
        for roof in roofs
        for peak in roof.peaks.values()
        if roof.slope is None or peak.mid < roof.slope.mid * right
    ]
    highs = [*(y.high for y in points), *reached] or [1.0]
    return min([y.low for y in points] or [0.1]) / _FOOTROOM, max(highs) * _HEADROOM


_LATENCY_ABOVE, _LATENCY_RIGHT = 1.15, 1.06  # room beyond the outermost points, as a factor
_FAR = 2.0


def draw_latency(rows: Sequence[Row], table: Table) -> Sheet:
    """A panel for each precision to its own scale from zero, with the time that reading the weights takes."""
    every = panels_of(rows, _ms)
    panels = [_near(panel) for panel in every]
    notes = [_beyond(panel, near) for panel, near in zip(every, panels, strict=True)]
    caption = [table.figure_caption, *absences(rows, _ms), *filter(None, notes)]
    titles = [panel.title for panel in panels]
    figure, every_axes = place_panels(panels, rows, caption, titles, "ms per layer", shared=False)
    read = read_spread(record for row in roof_rows(rows) for record in row.records)
    for panel, axes in zip(panels, every_axes, strict=True):
        _draw_latency(_latency_frame(axes, panel), panel, names_of(panels), read)
    return figure


def _latency_frame(axes: Axes, panel: CurvePanel) -> Frame:
    xs = sorted({point.x for point in panel.points})
    right = max(xs, default=1.0) * _LATENCY_RIGHT
    top = max((point.y.high for point in panel.points), default=1.0) * _LATENCY_ABOVE
    frame = Frame(axes=axes, x=(0.0, right), y=(0.0, top), x_name=TOKENS)
    frame.ticks(xs, round_ticks(top))
    return frame


def _draw_latency(frame: Frame, panel: CurvePanel, names: Sequence[str], read: Spread | None) -> None:
    """Labels come last, when all that they must not cover is there."""
    weights = _weights(panel)
    line = draw_read_time(frame, read, weights) if read and weights else None
    draw_curves(frame, panel, names)
    name_references(frame, panel)
    if line:
        frame.label(*line)


def _ms(row: Row) -> Spread | None:
    return None if row.step_s is None else scaled(row.step_s, 1e3)


def _weights(panel: CurvePanel) -> list[tuple[float, int]]:
    """Bytes of weights that a step reads at each number of tokens per expert, by the first row that says so."""
    found: dict[float, int] = {}
    for row in panel.rows:
        if row.work is not None:
            found.setdefault(row.spec.tokens_per_expert, row.work.weight_bytes)
    return sorted(found.items())


def _near(panel: CurvePanel) -> CurvePanel:
    """The panel without curves that lie so far above the fastest one that its shape would be lost."""
    reach = _FAR * min((max(_middles(curve)) for curve in panel.curves), default=0.0)
    curves = tuple(curve for curve in panel.curves if min(_middles(curve)) <= reach)
    references = tuple(curve for curve in panel.references if min(_middles(curve)) <= reach)
    return replace(panel, curves=curves, references=references)


def _beyond(panel: CurvePanel, near: CurvePanel) -> str:
    """Which curves the axis leaves out, and between what times they run; empty where it shows all."""
    shown = {curve.name for curve in (*near.curves, *near.references)}
    left_out = [curve for curve in (*panel.curves, *panel.references) if curve.name not in shown]
    return f"Beyond the axis of {panel.precision}: {'; '.join(map(_span, left_out))}." if left_out else ""


def _span(curve: Curve) -> str:
    return f"{curve.name}, {number(min(_middles(curve)), 3)} to {number(max(_middles(curve)), 3)} ms"


def _middles(curve: Curve) -> list[float]:
    return [point.y.mid for point in curve.points]


def draw_depth(rows: Sequence[Row], table: Table) -> Sheet:
    """A panel for each precision, all to one scale; a line for each arm and each value of what varies beside it."""
    axis = axis_of(rows)
    panels = panels_of(rows, _speed, axis)
    caption = [table.figure_caption, *absences(rows, _speed, axis)]
    titles = [panel.title if len(panels) > 1 else "" for panel in panels]
    log_y = all(map(_is_tall, panels))
    figure, every = place_panels(panels, (), caption, titles, "tokens/s", shared=False)
    values = [point.y for panel in panels for point in panel.points]
    lows, highs = [value.low for value in values], [value.high for value in values]
    for panel, axes in zip(panels, every, strict=True):
        frame = fitted(axes, (point.x for point in panel.points), lows, highs, axis.name, log_y=log_y)
        draw_curves(frame, panel, names_of(panels), bands=True)
        name_references(frame, panel)
    return figure


def _speed(row: Row) -> Spread | None:
    return None if row.tokens_per_s is None else scaled(row.tokens_per_s)


def _is_tall(panel: CurvePanel) -> bool:
    return bool(panel.points) and is_wide([p.y.low for p in panel.points], [p.y.high for p in panel.points])


_EVERY = 8  # markers on a curve, which tell it apart in grey
_BAND = 0.14
_LOSS, _APART = "loss (nats/token)", "difference to {} (nats/token)"


def draw_learning(learned: Sequence[Learned], table: Table) -> Sheet:
    """The losses of arms over the steps and, where there is a baseline, their differences to it."""
    settings = settings_shown(learned)
    curves = {learned_name(one, settings): one for one in learned if one.losses}
    look_of, base = looks([*curves]), next((one.shown for one in learned if one.is_baseline), "")
    parts = [_LOSS, *([_APART.format(base)] if any(one.apart for one in learned) else [])]
    layout = PanelGrid(
        count=len(parts),
        columns=len(parts),
        tall_in=PLOT_IN,
        above_in=0.08,
        below_in=0.34,
        width_in=COLUMN_IN if len(parts) == 1 else PAGE_IN,
        gap_in=LEFT_IN + 0.1,
    )
    absent = not_drawn((name, one.why) for one in learned if (name := learned_name(one, settings)) not in curves)
    figure, every = layout.draw([""] * len(parts), [table.figure_caption, *absent], handles([*curves]))
    for name, axes in zip(parts, every, strict=True):
        axes.set_ylabel(name)
        shown = {arm: one.losses if name == _LOSS else one.apart for arm, one in curves.items()}
        _draw_steps(axes, {arm: steps for arm, steps in shown.items() if steps}, look_of, log_y=name == _LOSS)
    return figure


def _draw_steps(
    axes: Axes, curves: Mapping[str, Sequence[Spread]], look_of: Mapping[str, dict[str, Any]], *, log_y: bool
) -> None:
    """A curve for each arm over the steps from 1 on, with the band of its spread."""
    ends = [end for steps in curves.values() for step in steps for end in (step.low, step.high)]
    count = max(map(len, curves.values()), default=1)
    frame = _steps_frame(axes, count, ends or [1.0], log_y=log_y and min(ends, default=1.0) > 0)
    if frame.y[0] < 0 < frame.y[1]:
        axes.axhline(0, color=REFERENCE, linewidth=0.6, zorder=1)
    for number_, (arm, steps) in enumerate(curves.items()):
        xs, look = range(1, len(steps) + 1), look_of[arm]
        lows, highs = [step.low for step in steps], [step.high for step in steps]
        axes.fill_between(xs, lows, highs, color=look["color"], alpha=_BAND, linewidth=0, zorder=1.5)
        spaced = max(1, len(steps) // _EVERY)
        at = (number_ * spaced // max(1, len(curves)), spaced)
        (line,) = axes.plot(xs, [step.mid for step in steps], markevery=at, zorder=3, **look)
        mark(line, Mark(key=("learned", arm)))


def _steps_frame(axes: Axes, count: int, ends: Sequence[float], *, log_y: bool) -> Frame:
    low, high = min(ends), max(ends)
    room = _MARGIN * (high - low)
    y = (low / _AROUND_LOSS, high * _AROUND_LOSS) if log_y else (low - room, high + room)
    frame = Frame(axes=axes, x=(0, (1 + _MARGIN) * count), y=y, x_name="step", log_y=log_y)
    ticks = [tick for tick in MaxNLocator(5).tick_values(*frame.y) if frame.y[0] <= tick <= frame.y[1]]
    frame.ticks(round_ticks(count), decades(*frame.y) if log_y else ticks)
    return frame
