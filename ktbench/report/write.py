"""Writes the report of a run into its folder: the same store gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktbench.files import NotWritten, write_whole
from ktbench.report.attribution_table import attribution_csv_text, attribution_json_text
from ktbench.report.data import (
    accuracy_csv_text,
    accuracy_json_text,
    csv_text,
    json_text,
    samples_csv_text,
    score_lines,
)
from ktbench.report.documents import KINDS, Document, Kind, documents_of, firsts_of_parts
from ktbench.report.exchange.artifact import ARTIFACT, write_artifact
from ktbench.report.exchange.llama_bench import llama_bench
from ktbench.report.exchange.lm_eval import results_of
from ktbench.report.latex import latex
from ktbench.report.learning_table import learning_csv_text, learning_json_text
from ktbench.report.markdown import markdown, page_of_tables
from ktbench.report.paper_bundle import write_paper_bundle
from ktbench.report.paper_table import paper_csv_text
from ktbench.results import Run
from ktbench.results.quantities.columns import columns_of
from ktbench.results.rows import rows_of
from ktbench.spec.errors import RequestError, instead
from ktbench.spec.sweep import NO_STYLE

if TYPE_CHECKING:
    from ktbench.report.figures.sheet import Sheet

# Of published numbers the CSV holds all that there is: they have no JSON.
_CSV: Mapping[Kind, Callable[[Document], str]] = {
    "table": lambda document: csv_text(document.run, document.rows),
    "paper": lambda document: paper_csv_text(document.lines),
    "accuracy": lambda document: accuracy_csv_text(document.run, document.answers),
    "attribution": lambda document: attribution_csv_text(document.run, document.attributions),
    "learning": lambda document: learning_csv_text(document.run, document.learned),
}
_JSON: Mapping[Kind, Callable[[Document], str]] = {
    "table": lambda document: json_text(document.run, document.rows, document.table),
    "accuracy": lambda document: accuracy_json_text(document.run, document.answers, document.table),
    "attribution": lambda document: attribution_json_text(document.run, document.attributions, document.table),
    "learning": lambda document: learning_json_text(document.run, document.learned, document.table),
}
_MARKDOWN = dict.fromkeys(KINDS, lambda document: markdown(document.table))
_LATEX = dict.fromkeys(KINDS, lambda document: latex(document.table))
_TEXTS = {"md": _MARKDOWN, "csv": _CSV, "json": _JSON, "tex": _LATEX}
_LLAMA_BENCH = "llama_bench"
TEXTS = (*_TEXTS, _LLAMA_BENCH)
_LM_EVAL = "lm_eval"  # of evaluations
FORMATS = (*_TEXTS, "figure", "html", _LM_EVAL)
_SAMPLES = "samples"
_DRAWN = {"figure", "html", "kit"}
_ON_REQUEST = ("kit", _LLAMA_BENCH, _SAMPLES, ARTIFACT)


def write_report(run: Run, formats: Sequence[str] = FORMATS, documents: Sequence[Document] | None = None) -> list[Path]:
    """Write `table.md`, `.csv`, `.json`, `.tex` and `figure.pdf`, `.svg`, `.png` below `<run folder>/report/`.

    As `html` of every run `page.html`, on request as `kit` a folder `kit` to drop into a paper, as `llama_bench`
    a table in the form of llama-bench's, `llama_bench.md`, as `samples` every timed step, `samples.csv`, and as
    `artifact` all of the run with its default report in `artifact.zip`.
    Of a run that asks a suite `accuracy.md`, `.csv`, `.json` and `.tex`, `table` of what was timed as well, and as
    `lm_eval` the results of each cell in lm-eval's layout below `<run folder>/lm_eval/`, where its samples are.
    Of one that attributes its speed-ups `attribution.md`, `.csv`, `.json` and `.tex` beside `table`, of one that
    learned from examples `learning.md` and the others. Where published numbers are shown,
    `paper.md`, `.csv`, `.tex` and `published.pdf`, `.svg`, `.png`, and all of them as `paper.html`, which prints on A4.
    A run of several parts gets all of them for each part, `table-<part>.md` and so on, and `table.md` and
    `paper.md` as the pages that hold all tables. Returns the paths written. `documents` are those of the run, where
    the caller has them. Raises RequestError for a format that is none of FORMATS, or of which there is nothing,
    before anything is written, and NotWritten.
    """
    allowed = (*FORMATS, *_ON_REQUEST)
    unknown = [name for name in formats if name not in allowed]
    if unknown:
        raise RequestError(f"report format {unknown[0]!r}: unknown{instead(unknown[0], allowed)}")
    documents, folder = documents_of(run) if documents is None else documents, run.folder / "report"
    if {*formats} == {_LM_EVAL} and not results_of(run):
        raise RequestError(f"report {_LM_EVAL}: is for answers to lm-eval's tasks, this run has none")
    if {*formats} == {_LLAMA_BENCH} and not _as_llama_bench(documents):
        raise RequestError(f"report {_LLAMA_BENCH}: is for timed prefill and decode steps, this run has none")
    if _DRAWN.intersection(formats):
        _draw_styled(documents)
    try:
        return [path for name in dict.fromkeys(formats) for path in _written(folder, run, documents, name)]
    except NotWritten as error:
        raise error.but_then(f"run `python -m ktbench report {run.folder}`, which needs the log alone") from None


def _draw_styled(documents: Sequence[Document]) -> list[Sheet]:
    """Figures that a style may leave no room for, which is refused before anything is written."""
    return [one.figure for one in documents if one.has_figure and one.style != NO_STYLE]


def texts_of(documents: Sequence[Document], name: str) -> list[str]:
    """The text of each document in a format that is one (`md`, `csv`, `json`, `tex`), where it has one.

    As `csv` documents of a kind are one text, which names the part of each line; `llama_bench` is one table.
    """
    if name == _LLAMA_BENCH:
        return [_as_llama_bench(documents)]
    found = [_merged(documents, kind) for kind in KINDS] if name == "csv" else documents
    return [text(document) for document in found if document and (text := _TEXTS[name].get(document.kind))]


def json_lines(run: Run, documents: Sequence[Document], files: Iterable[Path]) -> Iterator[str]:
    """A run as JSON lines: by `line` one for each `row`, one for each `score` of answers, then the `run` itself."""
    found: list[dict[str, Any]] = []
    for part in firsts_of_parts(documents):
        found += [{"line": "row", **columns_of(run, row)} for row in part.rows]
    for part in firsts_of_parts(documents):
        found += [{"line": "score", **line} for row in part.answers for line in score_lines(part.run, row)]
    header = run.header
    found.append({"line": "run", "run": header.run, "title": header.title, "files": [str(path) for path in files]})
    yield from (json.dumps(line, ensure_ascii=False, allow_nan=False) for line in found)


def _as_llama_bench(documents: Sequence[Document]) -> str:
    tables = _merged(documents, "table")
    return "" if tables is None else llama_bench(tables.run, tables.rows)


def _merged(documents: Sequence[Document], kind: Kind) -> Document | None:
    """All lines of documents of a kind as one; None where there are none."""
    found = [one for one in documents if one.kind == kind]
    if not found:
        return None
    return replace(
        found[0],
        rows=tuple(row for one in found for row in one.rows),
        lines=tuple(line for one in found for line in one.lines),
        answers=tuple(row for one in found for row in one.answers),
        attributions=tuple(share for one in found for share in one.attributions),
        learned=tuple(arm for one in found for arm in one.learned),
    )


def _written(folder: Path, run: Run, documents: Sequence[Document], name: str) -> Iterator[Path]:
    if name == "md":
        yield from _pages(folder, run, documents)
    for document in documents:
        if name == "figure":
            yield from _figures(folder, document)
        elif text := _TEXTS.get(name, {}).get(document.kind):
            yield write_whole(folder / f"{document.name}.{name}", text(document))
    if name == "html":
        from ktbench.report.web.page import page_html, paper_html

        yield write_whole(folder / "page.html", page_html(run, documents))
        if papers := [document for document in documents if document.kind == "paper"]:
            yield write_whole(folder / "paper.html", paper_html(run, papers))
    if name == _LM_EVAL:
        for path, content in results_of(run).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            yield write_whole(path, content)
    if name == _LLAMA_BENCH:
        yield write_whole(folder / f"{_LLAMA_BENCH}.md", _as_llama_bench(documents))
    if name == _SAMPLES:
        yield write_whole(folder / f"{_SAMPLES}.csv", samples_csv_text(rows_of(run)))
    if name == "kit":
        yield from write_paper_bundle(folder / "kit", run, documents)
    if name == ARTIFACT:
        made = [path for each in FORMATS for path in _written(folder, run, documents, each)]
        report = [path for path in made if path.is_relative_to(folder)]
        yield write_artifact(folder / f"{ARTIFACT}.zip", run, documents, report)


def _pages(folder: Path, run: Run, documents: Sequence[Document]) -> Iterator[Path]:
    """Of a run of several parts a page for each kind of table."""
    for kind in KINDS:
        found = [document for document in documents if document.kind == kind]
        if found and found[0].table.part:
            yield write_whole(folder / f"{kind}.md", page_of_tables(run.header.title, [one.table for one in found]))


def _figures(folder: Path, document: Document) -> Iterator[Path]:
    if document.has_figure:
        # matplotlib takes a second to load: only for those who want the figure.
        from ktbench.report.figures.output import save

        yield from save(document.figure, folder, document.table.figure_name)
