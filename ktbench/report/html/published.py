"""Published numbers beside simulated and measured ones, in the form that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ktbench.report.documents import Document
from ktbench.report.html.cards import Dealt
from ktbench.report.html.counts import HEAT, heat_picture, published_panels
from ktbench.report.html.forest import Mark, forest, linear, tallest
from ktbench.report.html.picture import Panel, Picture, in_pages
from ktbench.report.html.published_bars import bars_beside, scores_beside
from ktbench.report.html.published_curves import curves_beside
from ktbench.report.paper_panels import form_of, values_of
from ktbench.report.text import number
from ktbench.results.paper import PaperLine

CardOf = Callable[[PaperLine], int]


def published_pictures(document: Document, dealt: Dealt) -> Iterator[Picture]:
    """The figure of a document of published numbers; none where it has no number."""
    lines = document.lines
    cards = {id(line): card for line, card in zip(lines, dealt.lines, strict=True)}
    caption = " ".join([document.table.figure_caption, *document.table.methods])
    if not any(map(values_of, lines)):
        return
    form = form_of(lines)
    if form == "heat":
        panels = published_panels(lines, {line.id: cards[id(line)] for line in lines})
        yield heat_picture("Published", panels, f"{caption} {HEAT}.")
    elif form == "list":
        yield _list(lines, caption, lambda line: cards[id(line)])
    else:
        draw = {"curves": curves_beside, "bars": bars_beside, "scores": scores_beside}[form]
        yield draw(lines, caption, lambda line: cards[id(line)])


def _list(lines: Sequence[PaperLine], caption: str, card: CardOf) -> Picture:
    """A ring for each score below the words of its conditions."""
    marks = [_mark(line, line.published, card(line)) for line in lines if line.published is not None]
    x, name = linear(marks), f"{lines[0].metric}, published"
    panels = tuple(Panel(plot=forest(some, x, "published scores"), x_name=name) for some in in_pages(marks, tallest))
    return Picture(title="Published", caption=caption, panels=panels, wide=len(panels) == 1)


def _mark(line: PaperLine, value: float, card: int) -> Mark:
    name = "; ".join(filter(None, (line.precision, line.what)))
    return Mark(name=name, text=number(value, 3), card=card, look="s0", mid=value, low=value, high=value, hollow=True)
