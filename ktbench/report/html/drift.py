"""What is measured where answers are not graded: perplexity and how far predictions are from the baseline's."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.accuracy.measured import DotPanel, measured_panels
from ktbench.report.accuracy_table import settings_shown
from ktbench.report.accuracy_text import measured_text
from ktbench.report.html.answers import ends_of
from ktbench.report.html.cards import Dealt
from ktbench.report.html.forest import Mark, forest, linear
from ktbench.report.html.picture import Panel, Picture
from ktbench.report.text import spread_text
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.row import place


def drift_picture(rows: Sequence[AccuracyRow], dealt: Dealt) -> Picture | None:
    """A panel for each metric of each task; None where nothing was measured."""
    panels = tuple(_panel(panel, rows, dealt) for panel in measured_panels(rows) if panel.dots)
    if not panels:
        return None
    text = measured_text(rows)
    return Picture(title="Drift", caption=f"{text[0].upper()}{text[1:]}.", panels=panels, wide=len(panels) == 1)


def _panel(panel: DotPanel, rows: Sequence[AccuracyRow], dealt: Dealt) -> Panel:
    settings, marks = settings_shown(rows), []
    for dot in panel.dots:
        row, (mid, low, high) = rows[dot.line], ends_of(dot.value, panel.scale)
        text, card = spread_text(dot.value, panel.scale), dealt.cells[row.row.cell]
        marks.append(Mark(name=place(row.row, settings), text=text, card=card, mid=mid, low=low, high=high))
    reference = 0.0 if panel.zero else None
    plot = forest(marks, linear(marks, reference=reference), panel.x_name, reference)
    return Panel(plot=plot, title=panel.title, x_name=panel.x_name)
