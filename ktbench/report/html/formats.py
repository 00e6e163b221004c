"""Average score and its change over the format of the experts and of the device role, as heat maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ktbench.report.accuracy.cells import HeatCell, change_of_formats, score_of_formats
from ktbench.report.html.cards import Dealt
from ktbench.report.html.heat import LEGEND, heat_plot
from ktbench.report.html.picture import Panel, Picture
from ktbench.results.accuracy import AccuracyRow, by_formats, formats_of


def formats_picture(rows: Sequence[AccuracyRow], caption: str, dealt: Dealt) -> Picture:
    """A panel of scores and one of relative changes, formats of the experts below each other."""
    panels = (
        _panel(rows, "average score, %", score_of_formats, dealt),
        _panel(rows, "relative change, %", change_of_formats, dealt),
    )
    return Picture(title="Formats", caption=caption, panels=panels, legend=LEGEND, roomy=True)


def _panel(rows: Sequence[AccuracyRow], title: str, cell: Callable[[AccuracyRow], HeatCell], dealt: Dealt) -> Panel:
    (experts, devices), found = formats_of(rows), by_formats(rows)
    cells = {
        (devices.index(device), experts.index(name)): (cell(row), dealt.cells[row.row.cell])
        for (name, device), row in found.items()
    }
    plot = heat_plot([f"experts {name}" for name in experts], devices, cells, title)
    return Panel(plot=plot, title=title, x_name="format of the device role")
