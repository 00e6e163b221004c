"""Curves over one setting: throughput and time of a layer over tokens per expert (KTransformers, SOSP'25, Fig. 3,
7), and speed over the setting that a sweep varies in most steps, such as the depth of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2

from matplotlib.axes import Axes

from ktbench.report.figures.curves import (
    CROWDED,
    Curve,
    CurvePanel,
    absences,
    axis_of,
    draw_curves,
    name_references,
    names_of,
    panels_of,
    place_panels,
)
from ktbench.report.figures.frame import Frame, decades, fitted, is_wide, round_ticks
from ktbench.report.figures.label_placement import XY
from ktbench.report.figures.roofs import Rooflines, draw_read_time, draw_rooflines, rooflines
from ktbench.report.figures.sheet import Sheet, scaled
from ktbench.report.table import Table
from ktbench.report.text import number, unit_of
from ktbench.results.row import Row, roof_rows
from ktbench.results.settings import TOKENS
from ktbench.results.usage import Spread, read_spread

_AROUND = 1.6  # left and right of the outermost points of throughput, as a factor
_HEADROOM, _FOOTROOM = 2.0, 1.6


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
    titles = [_precision_title(panel) for panel in panels]
    figure, every = place_panels(panels, rows, caption, titles, "10¹² operations per second", shared=True)
    xs = sorted({point.x for panel in panels for point in panel.points})
    for panel, roof, axes in zip(panels, roofs, every, strict=True):
        frame = Frame(axes=axes, x=x, y=y, x_name=TOKENS, log_x=True, log_y=True)
        frame.ticks(_octaves(xs), decades(*y), named=bool(axes.get_ylabel()))
        _draw_throughput(frame, panel, roof, names_of(panels))
    return figure


def _octaves(xs: Sequence[float]) -> Sequence[float]:
    """Powers of two alone where there are many points."""
    return xs if len(xs) <= CROWDED else [x for x in xs if log2(x).is_integer()]


def _draw_throughput(frame: Frame, panel: CurvePanel, roofs: Rooflines, names: Sequence[str]) -> None:
    """Labels come last, when all that they must not cover is there."""
    lines = draw_rooflines(frame, roofs)
    draw_curves(frame, panel, names)
    name_references(frame, panel)
    for text, start, end in reversed(lines):
        frame.label(text, start, end)


def _throughput(row: Row) -> Spread | None:
    """10¹² operations/s."""
    if row.step_s is None or row.work is None:
        return None
    return scaled(row.step_s.per(row.work.flops / 1e12))


def _precision_title(panel: CurvePanel) -> str:
    units = dict.fromkeys(unit_of(row.spec.dtype) for row in panel.rows)
    return f"{panel.precision} weights ({', '.join(units)})"


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
    titles = [f"{panel.precision} weights" for panel in panels]
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
    """A panel for each precision, a line for each arm and each value of what varies beside the axis."""
    axis = axis_of(rows)
    panels = panels_of(rows, _speed, axis)
    caption = [table.figure_caption, *absences(rows, _speed, axis)]
    titles = [f"{panel.precision} weights" if len(panels) > 1 else "" for panel in panels]
    log_y = all(map(_is_tall, panels))  # one kind of scale, so that the panels look as they compare
    figure, every = place_panels(panels, (), caption, titles, "tokens/s", shared=False)
    for panel, axes in zip(panels, every, strict=True):
        lows, highs = [point.y.low for point in panel.points], [point.y.high for point in panel.points]
        frame = fitted(axes, (point.x for point in panel.points), lows, highs, axis.name, log_y=log_y)
        draw_curves(frame, panel, names_of(panels), bands=True)
        name_references(frame, panel)
    return figure


def _speed(row: Row) -> Spread | None:
    return None if row.tokens_per_s is None else scaled(row.tokens_per_s)


def _is_tall(panel: CurvePanel) -> bool:
    return bool(panel.points) and is_wide([p.y.low for p in panel.points], [p.y.high for p in panel.points])
