"""Pages without other files: all of a run, with findings, figures, tables and origin; all its published numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ktbench.report.documents import NUMERIC, Document, overview, titles_of
from ktbench.report.template import render
from ktbench.report.web.origin import facts_by_machine, origin_of
from ktbench.report.web.section import Figures, section_of
from ktbench.report.web.tooltips import TooltipIndex
from ktbench.report.web.warnings import warnings_of_run
from ktbench.results import Run

_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def page_html(run: Run, documents: Sequence[Document]) -> str:
    """The page of a run as HTML: the same store gives the same bytes, and opening it asks no network for anything."""
    index, figures = TooltipIndex(), Figures()
    titled = zip(documents, titles_of(documents), strict=True)
    sections = [section_of(one, index, figures, title) for one, title in titled]
    papers = [document for document in documents if document.kind == "paper"]
    text = render(
        "page.html.j2",
        header=run.header,
        sections=sections,
        warnings=warnings_of_run(run),
        overview=tuple(overview(papers)) if papers else (),
        origin=origin_of(run),
        machines=facts_by_machine(run),
        cards=index.cards,
        data=Markup(_data(index, figures.marks)),
        figure_css=Markup(figures.styles.css),
    )
    return f"{text.rstrip()}\n"


def paper_html(run: Run, papers: Sequence[Document]) -> str:
    """How far simulated values are from published ones, then each part with its figure and its table."""
    figures = Figures()
    text = render(
        "paper.html.j2",
        header=run.header,
        sections=[(paper.table, figures.embed(paper.figure, paper.table.title)) for paper in papers],
        overview=tuple(overview(papers)),
        numeric=NUMERIC,
        figure_css=Markup(figures.styles.css),
    )
    return f"{text.rstrip()}\n"


def _data(index: TooltipIndex, marks: Mapping[str, object]) -> str:
    """Cards and the marks of figures that show them, as JSON that can stand in a page.

    A fact is the number of its name in `names` and its text. A card that shares its command has the number of the card
    that holds it. `marks` has for each figure and the id of each mark the number of a card, with a note where it has
    one; several where the mark is a line with markers.
    """
    names = list(dict.fromkeys(name for card in index.cards for name, _ in card.facts))
    number = {name: n for n, name in enumerate(names)}
    content = {
        "names": names,
        "cards": [
            [card.name, [[number[name], text] for name, text in card.facts], *([] if holder == n else [holder])]
            for n, (card, holder) in enumerate(zip(index.cards, index.holders, strict=True))
        ],
        "marks": marks,
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_SAFE)
