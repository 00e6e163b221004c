"""The roofline plot: arithmetic that cells did over what they did for each byte of weights, against the roofs.

Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ktbench.report.figures.curves import looks
from ktbench.report.figures.frame import Frame, decades
from ktbench.report.figures.roofs import Rooflines, draw_rooflines, name_roof
from ktbench.report.figures.sheet import RIGHT_IN, PanelGrid, Sheet, mark_cells
from ktbench.results.row import Row
from ktbench.results.usage import peak_spreads, read_spread

_LEFT_IN = 0.5  # small models do few operations, which long names of ticks say
_ROOM = 2.0  # around the outermost points and roofs, as a factor

Look = Mapping[str, Any]


def draw_roofline(rows: Sequence[Row]) -> Sheet | None:
    """A panel for each machine, a point for each cell; None where no cell says its work next to sampled roofs."""
    found = [
        row for row in rows if row.role == "arm" and row.step_s and "roof_share" in row.values and _has_intensity(row)
    ]
    if not found:
        return None
    machines = list(dict.fromkeys(_machine(row) for row in found))
    arms = list(dict.fromkeys(row.shown for row in found))
    look_of: Mapping[str, Look] = {name: look | {"linestyle": ""} for name, look in looks(arms).items()}
    layout = PanelGrid(
        count=len(machines),
        columns=1,
        tall_in=2.4,
        above_in=0.16,
        below_in=0.34,
        left_in=_LEFT_IN,
        right_in=3 * RIGHT_IN,  # the name of a tick at the right end needs room
    )
    entries = [Line2D([], [], label=name, **look) for name, look in look_of.items()]
    titles = machines if len(machines) > 1 else [""]
    figure, every = layout.draw(titles, _caption(rows, found), entries)
    for name, axes in zip(machines, every, strict=True):
        _draw(axes, [row for row in found if _machine(row) == name], look_of)
    return figure


def _has_intensity(row: Row) -> bool:
    """Steps whose host role reads no weights, as where all experts live with the device, have no place on the axis."""
    return row.work is not None and row.work.flops > 0 and row.work.weight_bytes > 0


def _machine(row: Row) -> str:
    return "this machine" if row.spec.machine is None else row.spec.machine.title


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
        x=x,
        y=(min(ys) / _ROOM, max(ys) * _ROOM),
        x_name="operations per byte of weights",
        log_x=True,
        log_y=True,
    )
    frame.ticks(decades(*frame.x), decades(*frame.y))
    axes.set_ylabel("10¹² operations per second")
    for row, at, done in points:
        (drawn,) = axes.plot([at], [done], zorder=3, **look_of[row.shown])
        mark_cells(drawn, [row.cell])
        frame.take_marker((at, done))
    for line in draw_rooflines(frame, Rooflines(read=read, peaks=peaks, intensity=1.0)):
        name_roof(frame, *line)


def _intensity(row: Row) -> float:
    assert row.work is not None
    return row.work.flops / row.work.weight_bytes
