"""The roofline plot: arithmetic that cells did over what they did for each byte of weights, against the roofs.

Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ktbench.report.figures.curves import looks
from ktbench.report.figures.frame import Frame, decades
from ktbench.report.figures.roofs import BAND, DASHED
from ktbench.report.figures.sheet import (
    LEFT_IN,
    LEGEND_LINE_IN,
    PAGE_IN,
    RIGHT_IN,
    TOP_IN,
    Sheet,
    axes_at,
    draw_legend,
    legend_lines,
    mark_cells,
    sheet,
)
from ktbench.report.figures.text_metrics import LABEL_PT
from ktbench.report.text import number
from ktbench.results.row import Row
from ktbench.results.usage import Spread, peak_spreads, read_spread

_TALL_IN, _TITLE_IN, _BELOW_IN = 2.4, 0.16, 0.34
_WIDE_IN = PAGE_IN - LEFT_IN - 3 * RIGHT_IN  # the name of a tick at the right end needs room
_ROOM = 2.0  # around the outermost points and roofs, as a factor
_STEPS = 60  # a band bends where slope and peak meet

Look = Mapping[str, Any]


def draw_roofline(rows: Sequence[Row]) -> Sheet | None:
    """A panel for each machine, a point for each cell; None where no cell says its work next to sampled roofs."""
    found = [row for row in rows if row.role == "arm" and row.step_s and row.roof and _has_intensity(row)]
    if not found:
        return None
    machines = list(dict.fromkeys(_machine(row) for row in found))
    look_of: Mapping[str, Look] = {name: look | {"linestyle": ""} for name, look in looks(_arms(found)).items()}
    entries = [Line2D([], [], label=name, **look) for name, look in look_of.items()]
    legend = legend_lines(entries, PAGE_IN - 2 * RIGHT_IN)
    head, tall = TOP_IN + len(legend) * LEGEND_LINE_IN, _TITLE_IN + _TALL_IN + _BELOW_IN
    figure = sheet(PAGE_IN, head + len(machines) * tall, _caption(rows, found))
    draw_legend(figure, legend, TOP_IN)
    for n, name in enumerate(machines):
        axes = axes_at(figure, LEFT_IN, head + n * tall + _TITLE_IN, _WIDE_IN, _TALL_IN)
        if len(machines) > 1:
            axes.set_title(name, fontsize=LABEL_PT, pad=2)
        _draw(axes, [row for row in found if _machine(row) == name], look_of)
    return figure


def _arms(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.shown for row in rows))


def _has_intensity(row: Row) -> bool:
    """Steps whose host role reads no weights, as where all experts live with the device, have no place on the axis."""
    return row.work is not None and row.work.flops > 0 and row.work.weight_bytes > 0


def _machine(row: Row) -> str:
    return "this machine" if row.spec.machine is None else row.spec.machine.name


def _caption(rows: Sequence[Row], found: Sequence[Row]) -> list[str]:
    without = sum(row.role == "arm" and row.timed for row in rows) - len(found)
    left_out = [f"{without} timed cells report no work or have no roof and are not drawn."] if without else []
    measured = "measured" in {row.provenance for row in found}
    how = "sampled next to the trials: median, shaded from least to most" if measured else "as described"
    return [
        f"Operations per second over operations per byte of weights, a point for each cell; dashed: roofs, {how}.",
        *left_out,
    ]


def _draw(axes: Axes, rows: Sequence[Row], look_of: Mapping[str, Look]) -> None:
    records = [record for row in rows for record in row.records]
    read, peaks = read_spread(records), peak_spreads(records)
    assert read is not None, "a share of a roof needs a roof"
    points = [(row, _intensity(row), (row.flops_per_s or 0.0) / 1e12) for row in rows]
    xs = [*(x for _, x, _ in points), *(peak.mid / read.mid for peak in peaks.values())]
    x = min(xs) / _ROOM, max(xs) * _ROOM
    ys = [*(y for *_, y in points), *([peak.mid / 1e12 for peak in peaks.values()] or [read.mid * x[1] / 1e12])]
    frame = Frame(
        axes=axes,
        width_in=_WIDE_IN,
        height_in=_TALL_IN,
        x=x,
        y=(min(ys) / _ROOM, max(ys) * _ROOM),
        x_name="operations per byte of weights",
        log_x=True,
        log_y=True,
    )
    frame.ticks(decades(*frame.x), decades(*frame.y))
    axes.set_ylabel("10¹² operations per second", fontsize=LABEL_PT, labelpad=2)
    for row, at, done in points:
        (drawn,) = axes.plot([at], [done], zorder=3, **look_of[row.shown])
        mark_cells(drawn, [row.cell])
        frame.take_marker((at, done))
    _draw_roofs(frame, read, peaks)


def _intensity(row: Row) -> float:
    assert row.work is not None
    return row.work.flops / row.work.weight_bytes


def _draw_roofs(frame: Frame, read: Spread, peaks: Mapping[tuple[str, str], Spread]) -> None:
    """The band of each roofline with its middle dashed, and their names."""
    low, high = frame.x
    xs = [low * (high / low) ** (n / _STEPS) for n in range(_STEPS + 1)]
    for peak in peaks.values() or [Spread(low=inf, mid=inf, high=inf)]:
        lows = [min(read.low * at, peak.low) / 1e12 for at in xs]
        highs = [min(read.high * at, peak.high) / 1e12 for at in xs]
        frame.axes.fill_between(xs, lows, highs, color=BAND, linewidth=0, zorder=0)
        frame.axes.plot(xs, [min(read.mid * at, peak.mid) / 1e12 for at in xs], zorder=1, **DASHED)
    ridge = max((peak.mid for peak in peaks.values()), default=inf) / read.mid
    start, end = max(low, frame.y[0] * 1e12 / read.mid), min(high, ridge)
    frame.label(
        f"read {number(read.mid / 1e9, 2)} GB/s", (start, read.mid * start / 1e12), (end, read.mid * end / 1e12)
    )
    for (isa, dtype), peak in peaks.items():
        if (ridge := peak.mid / read.mid) < high:
            name = f"{isa} {dtype} {number(peak.mid / 1e12, 2)}"
            frame.label(name, (max(ridge, low), peak.mid / 1e12), (high, peak.mid / 1e12))
