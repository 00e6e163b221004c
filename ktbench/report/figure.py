"""The breakdown figure in the form of KTransformers (SOSP'25), Fig. 14: grouped bars normalised to the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ktbench.report.bars import LEGEND_LINE_IN, VALUE_PT, Panel, draw_legend, draw_panel, legend_lines
from ktbench.report.lettering import line_in, wrapped
from ktbench.report.row import Row
from ktbench.report.slots import Group, slots_of
from ktbench.report.tables import Table

# Fixed salt, no dates, fonts inside the file, nobody's own matplotlibrc: the same rows give the same bytes.
_OURS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ktbench",
    "text.parse_math": False,
}
_STYLE: Any = ["default", _OURS]
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_DPI = 300
_COLUMN_IN, _PAGE_IN = 3.5, 7.0  # one and two columns of a paper
_PLOT_IN, _LEFT_IN, _RIGHT_IN, _TOP_IN = 1.9, 0.42, 0.05, 0.05
_SLOTS_IN_COLUMN, _SLOTS_IN_PANEL = 6, 64
_CAPTION_PT = 5.6


def draw(rows: Sequence[Row], table: Table) -> Figure:
    """The figure of a run's rows: a slot for every arm, a bar where it was timed, its reason where it was not."""
    with style.context(_STYLE):
        groups, notes = slots_of(rows, 0.95 * _PLOT_IN, VALUE_PT)
        width = _COLUMN_IN if _slots(groups) <= _SLOTS_IN_COLUMN else _PAGE_IN
        caption = " ".join([table.figure_caption, *notes, *table.conditions])
        lines = wrapped(caption, _CAPTION_PT, width - 2 * _RIGHT_IN)
        return _draw(groups, rows[0].baseline, lines, width)


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write `figure.pdf`, `.svg` and `.png` into a folder."""
    written = []
    for suffix, metadata in _METADATA.items():
        path = folder / f"figure.{suffix}"
        with style.context(_STYLE):
            figure.savefig(path, format=suffix, dpi=_DPI, metadata=metadata)
        written.append(path)
    return written


def _draw(groups: Sequence[Group], baseline: str, lines: Sequence[str], width: float) -> Figure:
    """Everything is placed in inches from the top, so that text keeps its size whatever the figure holds."""
    arms = tuple(dict.fromkeys(slot.arm for group in groups for slot in group.slots))
    inner = width - _LEFT_IN - _RIGHT_IN
    panels = [
        Panel(groups=part, arms=arms, baseline=baseline, width_in=inner, height_in=_PLOT_IN) for part in _parts(groups)
    ]
    legend = legend_lines(arms, inner) if len(groups) > 1 else []
    top = _TOP_IN + len(legend) * LEGEND_LINE_IN
    bottom = top + sum(_PLOT_IN + panel.below_in() for panel in panels)
    height = bottom + (len(lines) + 0.5) * line_in(_CAPTION_PT)
    figure = Figure(figsize=(width, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    draw_legend(figure, legend, _TOP_IN)
    for panel in panels:
        place = (_LEFT_IN / width, 1 - (top + _PLOT_IN) / height, inner / width, _PLOT_IN / height)
        draw_panel(figure.add_axes(place), panel)
        top += _PLOT_IN + panel.below_in()
    for number, line in enumerate(lines, start=1):
        y = 1 - (bottom + number * line_in(_CAPTION_PT)) / height
        figure.text(_RIGHT_IN / width, y, line, fontsize=_CAPTION_PT)
    return figure


def _slots(groups: Sequence[Group]) -> int:
    """Slots with one left free between groups."""
    return sum(len(group.slots) + 1 for group in groups) - 1


def _parts(groups: Sequence[Group]) -> Iterator[tuple[Group, ...]]:
    """Groups one after the other, a new row of them where a page is too narrow for more."""
    part: tuple[Group, ...] = ()
    for group in groups:
        if part and _slots((*part, group)) > _SLOTS_IN_PANEL:
            yield part
            part = ()
        part = (*part, group)
    yield part
