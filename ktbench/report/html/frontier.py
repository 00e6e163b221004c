"""Decode speed against score: a point for each cell, those that none beats in both joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktbench.report.accuracy.frontier import formats_text, words_of
from ktbench.report.accuracy_table import undrawn
from ktbench.report.html.answers import ends_of
from ktbench.report.html.cards import Dealt
from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, XY, Plot, Spot
from ktbench.report.html.scale import Scale, linear_around
from ktbench.results.accuracy import AccuracyRow, FrontierPoint, frontier_of

_HEIGHT = 320.0
_RIGHT = 0.6  # of the canvas, from where words would run out of it


def frontier_picture(rows: Sequence[AccuracyRow], dealt: Dealt) -> Picture | None:
    """Tokens/s from left to right, the average score upwards; None where no cell has both."""
    points = list(frontier_of(rows).values())
    if not points:
        return None
    looks = looks_of([formats_text(point.row) for point in points])
    words, key = words_of(points)
    plot = _plot(points, words, looks, dealt)
    numbers = f" Numbers beside points: {key}." if key else ""
    caption = (
        "Decode speed against average score; whiskers: 95 % intervals. Filled and joined: no other arm is both as fast "
        f"and as good, by the middles of the intervals.{numbers}"
    )
    panel = Panel(plot=plot, x_name="decode speed, tokens/s", y_name="average score, %")
    legend = tuple((look, name) for name, look in looks.items())
    said = " ".join([caption, *undrawn(rows)])
    return Picture(title="Speed against score", caption=said, panels=(panel,), legend=legend, wide=True)


def _plot(points: Sequence[FrontierPoint], words: Sequence[str], looks: Mapping[str, str], dealt: Dealt) -> Plot:
    plot = Plot(height=_HEIGHT, label="speed against score; arrow keys go from point to point")
    speeds = [end for point in points for end in (point.speed.low, point.speed.high)]
    scores = [end for point in points for end in ends_of(point.score, 100)]
    x, y = linear_around(speeds, 0.0, WIDE), linear_around(scores, _HEIGHT, 0.0)
    plot.levels(y)
    plot.names_below(x, x.ticks())
    plot.lines("reference", [sorted(_middle(point, x, y) for point in points if point.is_pareto)])
    for point, text in zip(points, words, strict=True):
        _draw(plot, point, text, looks[formats_text(point.row)], x, y)
        at = _middle(point, x, y)
        plot.spots.append(Spot(x=at[0], y=at[1], card=dealt.cells[point.row.row.cell]))
    return plot


def _middle(point: FrontierPoint, x: Scale, y: Scale) -> XY:
    return x(point.speed.mid), y(100 * point.score.mid)


def _draw(plot: Plot, point: FrontierPoint, text: str, look: str, x: Scale, y: Scale) -> None:
    at_x, at_y = _middle(point, x, y)
    _, low, high = ends_of(point.score, 100)
    whiskers = [[(x(point.speed.low), at_y), (x(point.speed.high), at_y)], [(at_x, y(low)), (at_x, y(high))]]
    plot.lines(f"reach thin {look}", whiskers)
    plot.dots(f"dot {look}", [(at_x, at_y)])
    if point.is_pareto:
        if at_x > _RIGHT * WIDE:
            plot.text("near", (at_x, at_y - 7), text, "end", -6.0)
        else:
            plot.text("near", (at_x, at_y - 7), text, "start", 6.0)
    else:
        plot.dots("hole", [(at_x, at_y)])
