"""Speed against error, a marker for each format, one panel for each phase; the larger a marker, the more bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.curves import REFERENCE, reason_of
from ktbench.report.figures.frame import Frame, decades
from ktbench.report.figures.sheet import COLUMN_IN, WHISKER, PanelGrid, Sheet, mark_cells, reach, scaled
from ktbench.report.table import Table
from ktbench.report.text import not_drawn
from ktbench.results.accuracy import AccuracyRow, absence_of
from ktbench.results.formats import (
    FormatPlane,
    FormatPoint,
    Quantity,
    format_of,
    plane_of_answers,
    plane_of_rows,
)
from ktbench.results.row import Row, stored_bits
from ktbench.spec.run_spec import RunSpec

_LABELS: Mapping[Quantity, str] = {
    "kl": "KL against the baseline (nats/token)",
    "bits": "bits a weight",
}
_TALL_IN, _ABOVE_IN, _BELOW_IN, _LEFT_IN = 2.0, 0.2, 0.36, 0.5
_ROOM = 0.12  # beside the outermost points, as a part of what they span
_PT = 1.5  # of a marker, times the root of its bits
_SHADE, _PALE = "#35688f", "#bcd0e2"
_SHOWN_BITS = (4, 8, 16)


def draw_formats_of_answers(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """The divergence from the baseline over the speed."""
    cells = [row.row for row in rows]
    absent = ((f"precision={_words(row.row, cells)}", why) for row in rows if (why := absence_of(row)))
    return _draw(plane_of_answers(rows), [*caption, *not_drawn(absent)])


def draw_formats(rows: Sequence[Row], table: Table) -> Sheet:
    """The bits of a weight over the speed."""
    absent = ((_words(row, rows), reason_of(row)) for row in rows if row.role == "arm" and not row.timed)
    return _draw(plane_of_rows(rows), [table.figure_caption, *not_drawn(absent)])


def _draw(plane: FormatPlane, caption: Sequence[str]) -> Sheet:
    every = [*(point.row for point in plane.points), *plane.references]
    works = list(dict.fromkeys(_work(row.spec) for row in every)) or [""]
    layout = PanelGrid(
        count=len(works),
        columns=1,
        tall_in=_TALL_IN,
        above_in=_ABOVE_IN,
        below_in=_BELOW_IN,
        width_in=COLUMN_IN,
        left_in=_LEFT_IN,
    )
    figure, panels = layout.draw(works, caption, list(_entries(every)))
    for work, axes in zip(works, panels, strict=True):
        points = [point for point in plane.points if _work(point.row.spec) == work]
        references = [row for row in plane.references if _work(row.spec) == work]
        axes.set_ylabel(_LABELS[plane.quantity])
        if points:
            _panel(axes, points, references, every)
        else:
            axes.set_axis_off()
    return figure


def _work(spec: RunSpec) -> str:
    work = spec.workload
    if work.phase == "layer":
        return f"one layer, {work.batch} tokens"
    batch = f", batch {work.batch}" if work.batch > 1 else ""
    return f"{work.phase} {'of' if work.phase == 'prefill' else 'after'} {work.prompt} tokens{batch}"


def _entries(rows: Sequence[Row]) -> Iterator[Line2D]:
    """What sizes mean, the numbers between those of the formats shown, and what is filled."""
    bits = [stored_bits(row) for row in rows]
    for shown in _SHOWN_BITS if bits else ():
        if min(bits) / 2 <= shown <= 2 * max(bits):
            yield Line2D([], [], label=f"{shown} bits a weight", **_look(shown, is_best=False))
    yield Line2D([], [], label="filled: none is faster and lower", linestyle="")


def _look(bits: float, *, is_best: bool) -> dict[str, Any]:
    return {
        "color": _SHADE,
        "linestyle": "",
        "marker": "o",
        "markersize": _PT * bits**0.5,
        "markerfacecolor": _SHADE if is_best else "white",
        "markeredgewidth": 0.8,
    }


def _panel(axes: Axes, points: Sequence[FormatPoint], references: Sequence[Row], every: Sequence[Row]) -> None:
    speeds = [(row, row.tokens_per_s.mid) for row in references if row.tokens_per_s]
    frame = _frame(axes, points, [speed for _, speed in speeds])
    for row, speed in speeds:
        line = axes.axvline(speed, color=REFERENCE, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        mark_cells(line, [row.cell])
        frame.take_line([(speed, frame.y[0]), (speed, frame.y[1])])
    for point in points:
        _draw_point(frame, point)
    for point in sorted(points, key=lambda point: not point.is_best):
        frame.lead_to_marker(_words(point.row, every), (point.speed.mid, point.height.mid))
    for row, speed in speeds:
        frame.label(_words(row, every), (speed, frame.y[0]), (speed, frame.y[1]), REFERENCE)


def _frame(axes: Axes, points: Sequence[FormatPoint], references: Sequence[float]) -> Frame:
    xs = [*references, *(end for p in points for end in (scaled(p.speed).low, scaled(p.speed).high))]
    low, high = min(p.height.low or p.height.mid for p in points), max(p.height.high for p in points)  # 0: to the axis
    room, factor = _ROOM * (max(xs) - min(xs)), max((high / low) ** _ROOM, 1.3)
    frame = Frame(
        axes=axes,
        x=(min(xs) - room, max(xs) + room),
        y=(low / factor, high * factor),
        x_name="tokens/s",
        log_y=True,
    )
    ticks = MaxNLocator(5).tick_values(*frame.x)
    frame.ticks([tick for tick in ticks if frame.x[0] <= tick <= frame.x[1]], decades(*frame.y))
    return frame


def _draw_point(frame: Frame, point: FormatPoint) -> None:
    speed, look = scaled(point.speed), _look(stored_bits(point.row), is_best=point.is_best)
    height = replace(point.height, low=max(point.height.low, frame.y[0]))
    drawn = frame.axes.errorbar(
        [speed.mid],
        [height.mid],
        xerr=reach([speed]),
        yerr=reach([height]),
        ecolor=_PALE,
        zorder=3,
        **WHISKER,
        **look,
    )
    mark_cells(drawn.lines[0], [point.row.cell])
    frame.take_marker((speed.mid, height.mid))
    frame.take_line([(speed.low, height.mid), (speed.high, height.mid)])
    frame.take_line([(speed.mid, height.low), (speed.mid, height.high)])


def _words(row: Row, rows: Sequence[Row]) -> str:
    """The format, and the arm where there are several."""
    arms = {one.shown for one in rows if one.role == "arm"}
    return format_of(row) if len(arms) == 1 else f"{format_of(row)} {row.shown}"
