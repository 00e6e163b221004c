"""Time of a layer over few tokens per expert, in the form of KTransformers (SOSP'25), Fig. 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ktbench.report.curves import Curve, CurvePanel, absences, names_of, panels_of
from ktbench.report.frame import Frame
from ktbench.report.lettering import LABEL_PT
from ktbench.report.lines import draw_curves, name_references
from ktbench.report.panels import is_leftmost, place_panels
from ktbench.report.rooflines import draw_read_time
from ktbench.report.sheet import PLOT_IN
from ktbench.report.table import Table
from ktbench.report.text import number
from ktbench.results.row import Row, roof_rows
from ktbench.results.settings import TOKENS
from ktbench.results.usage import Spread, read_spread

_ROOM_ABOVE, _ROOM_RIGHT = 1.15, 1.06
_FAR = 2.0


def draw_latency(rows: Sequence[Row], table: Table) -> Figure:
    """A panel for each precision to its own scale from zero, with the time that reading the weights takes."""
    every = panels_of(rows, _ms)
    panels = [_near(panel) for panel in every]
    notes = [_beyond(panel, near) for panel, near in zip(every, panels, strict=True)]
    caption = [table.figure_caption, *absences(rows, _ms), *filter(None, notes), *table.conditions]
    titles = [f"{panel.precision} weights" for panel in panels]
    figure, placed = place_panels(panels, rows, caption, titles, shared=False)
    read = read_spread(record for row in roof_rows(rows) for record in row.records)
    for n, (panel, (axes, width)) in enumerate(zip(panels, placed, strict=True)):
        if is_leftmost(n, len(panels)):
            axes.set_ylabel("ms per layer", fontsize=LABEL_PT, labelpad=2)
        _draw(_frame(axes, width, panel), panel, names_of(panels), read)
    return figure


def _frame(axes: Axes, width: float, panel: CurvePanel) -> Frame:
    xs = sorted({point.x for point in panel.points})
    right = max(xs, default=1.0) * _ROOM_RIGHT
    top = max((point.y.high for point in panel.points), default=1.0) * _ROOM_ABOVE
    frame = Frame(axes=axes, width_in=width, height_in=PLOT_IN, x=(0.0, right), y=(0.0, top), x_name=TOKENS)
    frame.ticks(xs, [tick for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0, top) if tick <= top])
    return frame


def _draw(frame: Frame, panel: CurvePanel, names: Sequence[str], read: Spread | None) -> None:
    """Labels come last, when all that they must not cover is there."""
    weights = _weights(panel)
    line = draw_read_time(frame, read, weights) if read and weights else None
    draw_curves(frame, panel, names)
    name_references(frame, panel)
    if line:
        frame.label(*line)


def _ms(row: Row) -> Spread | None:
    step = row.step_s
    return None if step is None else Spread(low=step.low * 1e3, mid=step.mid * 1e3, high=step.high * 1e3)


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
