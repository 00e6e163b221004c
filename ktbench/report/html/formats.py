"""Average score and its change over the format of the experts and of the device role, as heat maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ktbench.report.accuracy.formats import by_formats, formats_of
from ktbench.report.accuracy.rows import AccuracyRow
from ktbench.report.accuracy.text import score_text, signed
from ktbench.report.html.cards import Dealt
from ktbench.report.html.heat import LEGEND, HeatCell, heat_plot
from ktbench.report.html.picture import Panel, Picture
from ktbench.report.text import DASH
from ktbench.stats.scores import ScoreVerdict


def formats_picture(rows: Sequence[AccuracyRow], caption: str, dealt: Dealt) -> Picture:
    """A panel of scores and one of relative changes, formats of the experts below each other."""
    panels = (
        _panel(rows, "average score, %", _score, dealt),
        _panel(rows, "relative change, %", _change, dealt),
    )
    return Picture(title="Formats", caption=caption, panels=panels, legend=LEGEND, roomy=True)


def _panel(
    rows: Sequence[AccuracyRow], title: str, cell: Callable[[AccuracyRow, int], HeatCell], dealt: Dealt
) -> Panel:
    (experts, devices), found = formats_of(rows), by_formats(rows)
    cells = {
        (devices.index(device), experts.index(name)): cell(row, dealt.cells[row.row.cell])
        for (name, device), row in found.items()
    }
    plot = heat_plot([f"experts {name}" for name in experts], devices, cells, title)
    return Panel(plot=plot, title=title, x_name="format of the device role")


def _score(row: AccuracyRow, card: int) -> HeatCell:
    result = row.result()
    return HeatCell(text=score_text(None if result is None else result.score), card=card)


def _change(row: AccuracyRow, card: int) -> HeatCell:
    result = row.result()
    change = None if result is None else result.change
    if change is None or change.relative is None:
        return HeatCell(text="baseline" if row.is_baseline else DASH, card=card)
    mid, sure = change.relative.mid, change.verdict is not ScoreVerdict.NONE_SHOWN
    return HeatCell(text=signed(mid), card=card, change=100 * mid, sure=sure)
