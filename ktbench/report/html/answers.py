"""What answers were worth, as points with intervals: the change of each cell's average against the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktbench.report.accuracy.rows import AccuracyRow
from ktbench.report.accuracy.text import change_text, score_text
from ktbench.report.html.picture import Panel, Picture
from ktbench.report.html.plot import WIDE, Plot, Spot
from ktbench.report.html.scale import Scale, tick_name
from ktbench.stats.scores import Estimate

_PITCH = 34.0


def answers_picture(rows: Sequence[AccuracyRow], cards: Mapping[str, int], caption: str) -> Picture | None:
    """A point for each cell that has a change; None where none has."""
    found = [(row, result.change.difference) for row in rows if (result := row.result()) and result.change]
    if not found:
        return None
    ends = [100 * end for _, change in found for end in (*_ends(change), 0.0)]
    room = 0.06 * (max(ends) - min(ends)) or 1.0
    x = Scale(low=min(ends) - room, high=max(ends) + room, start=0.0, end=WIDE)
    plot = Plot(height=_PITCH * len(found), label="changes of scores; arrow keys go from one to the next", rows=True)
    for tick in x.ticks(5):
        plot.lines("grid" if tick else "reference", [[(x(tick), 0.0), (x(tick), plot.height)]])
        plot.below(x(tick), tick_name(tick))
    for n, (row, change) in enumerate(found):
        _draw(plot, row, change, n * _PITCH, x, cards[row.row.cell])
    panel = Panel(plot=plot, x_name="points of the average score, against the baseline, with its 95 % interval")
    return Picture(title="Change of the score", caption=caption, panels=(panel,), wide=True)


def _ends(change: Estimate) -> tuple[float, float]:
    low, high = change.low, change.high
    return (change.mid if low is None else low), (change.mid if high is None else high)


def _draw(plot: Plot, row: AccuracyRow, change: Estimate, y: float, x: Scale, card: int) -> None:
    low, high = (x(100 * end) for end in _ends(change))
    result = row.result()
    score = score_text(result.score if result else None)
    plot.text("name", (0.0, y + 12), row.row.shown)
    plot.text("value", (WIDE, y + 12), f"{change_text(change)} · {score}", "end")
    plot.lines("whisker", [[(low, y + 22), (high, y + 22)]])
    plot.dots("dot s1", [(x(100 * change.mid), y + 22)])
    plot.spots.append(Spot(x=x(100 * change.mid), y=y + 22, card=card))
