"""All published numbers of a run on one page that needs nothing else: figures and tables, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ktbench.report.documents import Document
from ktbench.report.figure import svg_text
from ktbench.report.paper_summary import HEADINGS, NUMERIC, overview
from ktbench.report.tables import Table
from ktbench.results.store import Run

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ccc; --soft: #f3f6f9; --far: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #16191d; --line: #3a4149; --soft: #20252b; --far: #999; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; } a { color: inherit; }
figure { margin: 1rem 0; background: #fff; border-radius: 6px; padding: 6px; overflow-x: auto; }
figure svg { display: block; width: 100%; height: auto; margin: auto; overflow: visible; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.7em; text-align: left; border-bottom: 1px solid var(--line); }
th { border-bottom-width: 2px; vertical-align: bottom; } .number { text-align: right; }
tbody tr:nth-child(even) { background: var(--soft); }
ul { color: var(--far); font-size: 0.85rem; padding-left: 1.2em; } summary { cursor: pointer; }
"""


def html(run: Run, papers: Sequence[Document]) -> str:
    """The page: how far simulated values are from published ones, then each part with its figure and its table."""
    return "\n".join(_lines(run, papers)) + "\n"


def _lines(run: Run, papers: Sequence[Document]) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(run.header.title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(run.header.title)}</h1>"
    yield f"<p>Made by <code>{escape(' '.join(run.header.command))}</code>.</p>"
    yield from _grid(HEADINGS, overview(papers), NUMERIC)
    if len(papers) > 1:
        links = (f'<a href="#{paper.table.part}">{escape(paper.table.title)}</a>' for paper in papers)
        yield f"<nav>{''.join(links)}</nav>"
    for paper in papers:
        yield from _section(paper)
    yield "</body></html>"


def _section(paper: Document) -> Iterator[str]:
    table = paper.table
    yield f'<section id="{table.part}"><h2>{escape(table.title)}</h2>'
    yield f"<figure>{_inline(svg_text(paper.draw()), table.figure_name)}</figure>"
    yield from _listed([*table.methods, *table.conditions])
    yield f"<details{'' if len(table.cells) > _LONG else ' open'}><summary>{len(table.cells)} numbers</summary>"
    yield from _grid([column.heading for column in table.columns], table.cells, _numeric(table))
    yield from _listed(table.notes)
    yield "</details></section>"


_LONG = 40  # rows from which a table is folded
_PX_PER_PT = 1.7  # figures are lettered for print


def _numeric(table: Table) -> list[bool]:
    return [column.numeric for column in table.columns]


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool]) -> Iterator[str]:
    yield '<div class="scroll"><table><thead>'
    yield _row("th", headings, numeric)
    yield "</thead><tbody>"
    yield from (_row("td", row, numeric) for row in rows)
    yield "</tbody></table></div>"


def _row(tag: str, cells: Sequence[str], numeric: Sequence[bool]) -> str:
    found = zip(cells, numeric, strict=True)
    marked = (f"<{tag}{' class=number' if right else ''}>{escape(cell)}</{tag}>" for cell, right in found)
    return f"<tr>{''.join(marked)}</tr>"


def _listed(sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield "<ul>"
        yield from (f"<li>{escape(sentence)}</li>" for sentence in sentences)
        yield "</ul>"


def _inline(svg: str, name: str) -> str:
    """A picture without the head of its file, all of one scale; ids begin with its name, as they hold for the page."""
    picture = svg[svg.index("<svg") :]
    if width := re.search(r'width="([\d.]+)pt"', picture):
        picture = picture.replace("<svg", f'<svg style="max-width: {_PX_PER_PT * float(width[1]):.0f}px"', 1)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", picture)
