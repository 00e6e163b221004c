"""All of a run on one page that needs nothing else: words, figures, tables, origin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ktbench.report.documents import Document, titles_of
from ktbench.report.html.picture import Picture
from ktbench.report.html.plot import Plot
from ktbench.report.page.origin import facts_by_machine, origin_of
from ktbench.report.page.section import section_of
from ktbench.report.page.tooltips import Deck
from ktbench.report.page.warnings import doubts_of_run
from ktbench.report.paper_summary import HEADINGS, overview
from ktbench.results.store import Run

_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def page_html(run: Run, documents: Sequence[Document]) -> str:
    """The page of a run as HTML: the same store gives the same bytes, and opening it asks no network for anything."""
    deck = Deck()
    sections = [section_of(one, deck, title) for one, title in zip(documents, titles_of(documents), strict=True)]
    plots = _named(picture for section in sections for picture in section.pictures)
    papers = [document for document in documents if document.kind == "paper"]
    text = _template().render(
        header=run.header,
        sections=sections,
        doubts=doubts_of_run(run),
        overview=(HEADINGS, *overview(papers)) if papers else (),
        origin=origin_of(run),
        machines=facts_by_machine(run),
        deck=deck.cards,
        data=Markup(_data(deck, plots)),
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
    )
    return f"{text.rstrip()}\n"


def _named(pictures: Iterable[Picture]) -> dict[str, Plot]:
    """Give all plots names, under which the script finds their spots."""
    plots = [panel.plot for picture in pictures for panel in picture.panels]
    for n, plot in enumerate(plots):
        plot.name = f"plot-{n}"
    return {plot.name: plot for plot in plots}


def _data(deck: Deck, plots: dict[str, Plot]) -> str:
    """What the script shows of cards and where it finds them, as JSON that can stand in a page.

    Names of facts are said once; a fact is the number of its name and its text. A card whose command another has, too,
    has the number of that one.
    """
    names = list(dict.fromkeys(name for card in deck.cards for name, _ in card.facts))
    number = {name: n for n, name in enumerate(names)}
    content = {
        "names": names,
        "cards": [
            [card.name, [[number[name], text] for name, text in card.facts], *([] if holder == n else [holder])]
            for n, (card, holder) in enumerate(zip(deck.cards, deck.holders, strict=True))
        ],
        "plots": {name: [spot.plain for spot in plot.spots] for name, plot in plots.items()},
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_SAFE)


@cache
def _template() -> Template:
    room = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return room.from_string(_asset("page.html.j2"))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
