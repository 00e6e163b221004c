"""Shows a finished run: the rows on stdout, the files it wrote, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from ktbench.cli.streams import is_json, is_verbose
from ktbench.report.conditions import UNPROVEN, unproven_sentence
from ktbench.report.documents import NUMERIC, Document, documents_of, firsts_of_parts, overview
from ktbench.report.equal_cells import equal_cells_sentence
from ktbench.report.markdown import common_to, grid, grid_of, table_grid
from ktbench.report.terminal import accuracy_line, name_width, row_line, shared_facts
from ktbench.report.web.findings import best_row, best_score, best_sentence
from ktbench.report.write import json_lines, write_report
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow
from ktbench.results.quantities.writing import MARK, kl_text, top1_text
from ktbench.results.row import Row, groups_of
from ktbench.results.settings import TOKENS, varying
from ktbench.run.progress import setting_words
from ktbench.spec.errors import FAILED, one_line
from ktbench.spec.record import Outcome

DONE = 0
TRACKERS = "ktbench.trackers"  # entry points
# A machine without a GPU runs the sweep as well as it can: what it cannot run is a row with its reason, not a failure.
_FINE_IN_A_SWEEP = frozenset({Outcome.OK, Outcome.NOISY, Outcome.UNSUPPORTED})
_FINE_ALONE = frozenset({Outcome.OK, Outcome.NOISY})


def show(run: Run, *, alone: bool = False) -> int:
    """Write the report and print its rows. Exit code 4 where a cell failed, or where the only cell could not run."""
    documents = documents_of(run)
    files = write_report(run, documents=documents)
    _tell_trackers(run)
    if is_json():
        print("\n".join(json_lines(run, documents, files)))
    else:
        print(f"{run.header.title}\n")
        print("\n".join((*_text(run, documents), *_result(documents), "", _where(run.folder / "report", files))))
    fine = _FINE_ALONE if alone else _FINE_IN_A_SWEEP
    return DONE if all(outcome in fine for outcome in _outcomes(documents)) else FAILED


def _where(folder: Path, files: Sequence[Path]) -> str:
    """`report: runs/decode/report/page.html; tables, data and figures beside it`."""
    page = folder / "page.html"
    return f"report: {page}; tables, data and figures are beside it" if page in files else f"report: {folder}"


def _tell_trackers(run: Run) -> None:
    """Calls what other packages name in `TRACKERS` with the run's folder; one that fails is a line on stderr.

    What they print goes there, too: stdout is our own, which programs may read.
    """
    for point in metadata.entry_points(group=TRACKERS):
        try:
            with redirect_stdout(sys.stderr):
                point.load()(run.folder)
        except (Exception, SystemExit) as error:  # code of others: the run is complete whatever it does
            print(f"ktbench: tracker {point.name}: {one_line(f'{type(error).__name__}: {error}')}", file=sys.stderr)


def _outcomes(documents: Sequence[Document]) -> Iterator[Outcome | None]:
    """Outcomes of all cells: of their answers where a suite was evaluated, and of their timed steps."""
    for document in firsts_of_parts(documents):
        for row in document.answers:
            yield row.outcome
        yield from (row.outcome for row in document.rows if not document.answers or row.records)


def _text(run: Run, documents: Sequence[Document]) -> Iterator[str]:
    """Rows and conditions; each of several parts below its title, and conditions common to all at the end.

    For a part with published numbers their table replaces the rows, unless it is an evaluation.
    """
    parts = [[one for one in documents if one.table.part == first.table.part] for first in firsts_of_parts(documents)]
    shown = [_shown(part) for part in parts]
    common = common_to([one.conditions for one in shown]) if shown else ()
    for part, one in zip(parts, shown, strict=True):
        if len(parts) > 1:
            yield part[0].table.title
        yield from (*one.lines, "")
        if own := [sentence for sentence in one.conditions if sentence not in common]:
            yield from (*own, "")
    yield from common
    if papers := [one.paper for one in shown if one.paper]:
        yield from ("", *grid([*overview(papers)], NUMERIC))


def _result(documents: Sequence[Document]) -> Iterator[str]:
    """What came out, in one sentence on speeds and one on the scores of each part; nothing of what has no other."""
    parts = firsts_of_parts(documents)
    for part in parts:
        if scored := best_score(part.answers):
            yield from ("", f"{_named(scored[0].row, part.rows)}: {scored[1]}.")
    rows = [row for part in parts for row in part.rows if not part.answers]
    best = best_row(rows)
    mine = [row for row in rows if best is not None and row.part == best.part]
    if best is not None and (found := best_sentence(mine)):
        yield from ("", f"{_named(best, mine)}: {found.text}.")
    elif any(row.speedup for row in rows if row.role == "arm"):
        yield from ("", "No arm was shown to be faster than its baseline.")


def _named(row: Row, rows: Sequence[Row]) -> str:
    """`+v (batch 4)`: a row with the settings that tell it from the others of its part, in words."""
    keys = varying([group[0].settings for group in groups_of(rows)])
    where = setting_words({key: row.settings.get(key) for key in keys})
    return f"{row.shown}{f' ({where})' if where else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """A part on a terminal; `paper` is set where it shows published numbers."""

    lines: tuple[str, ...]
    conditions: tuple[str, ...]
    paper: Document | None = None


def _shown(part: Sequence[Document]) -> _Shown:
    first, last = part[0], part[-1]
    if first.answers:
        return _evaluation(first)
    if last.kind == "paper":
        table = last.table
        lines = (*table_grid(table, table.cells), *table.notes)
        return _Shown(lines=lines, conditions=(*table.conditions, *table.methods), paper=last)
    return _speeds(part)


def _evaluation(document: Document) -> _Shown:
    """Answers, then the last of the grids below their table: changes, or scores where there are none."""
    of_cell = {row.row.cell: row for row in document.answers}
    lines = listing(document.rows, lambda row: _answer_lines(of_cell[row.cell], name_width(document.rows)))
    below = [line for one in document.table.grids[-1:] for line in ("", f"{one.title}:", *grid_of(one))]
    return _Shown(lines=(*lines, *below), conditions=document.table.conditions)


def _answer_lines(row: AccuracyRow, width: int) -> Iterator[str]:
    yield accuracy_line(row, width)
    if row.row.timed:
        yield row_line(row.row, width)
    if row.evidence and is_verbose():
        yield f"{'':<{width}}   seen: {row.evidence}"


def _speeds(part: Sequence[Document]) -> _Shown:
    """A line for each row, and below the tables of what was learned and of shares."""
    rows, table = part[0].rows, next(one.table for one in part if one.kind == "table")
    lines = listing(rows, partial(_lines, width=name_width(rows), shared=shared_facts(rows)))
    equal = equal_cells_sentence(rows)
    others = (one.table for one in part if one.kind in ("attribution", "learning"))
    below = [line for other in others for line in ("", *table_grid(other, other.cells), *other.notes)]
    doubt = unproven_sentence(rows, f" ({MARK})").strip()
    conditions = (*filter(None, (doubt,)), *table.conditions)
    return _Shown(lines=(*lines, *(("", equal) if equal else ()), *below), conditions=conditions)


def _lines(row: Row, width: int, shared: Set[str]) -> Iterator[str]:
    """The row, and on request its remarks and what shows that its features ran and its answers are right."""
    yield row_line(row, width, shared)
    if not is_verbose():
        return
    yield from (f"{'':<{width}}   {remark}" for remark in row.remarks)
    if row.timed:
        seen = row.evidence or row.missing["evidence"]
        facts = [
            seen if row.simulated else f"seen: {seen}",
            row.missing["error"] if row.error is None else f"error {row.error:.1e} against float32",
            *_answers(row),
            *([f"{row.outcome}: {row.why}"] if row.why else []),
        ]
        yield f"{'':<{width}}   {'; '.join(facts)}"


def _answers(row: Row) -> Iterator[str]:
    """Agreement of the logits with those of other systems, where there is any."""
    if row.unproven:
        yield UNPROVEN
    elif row.agreement and row.agreement.against:
        yield f"top-1 {top1_text(row)}% and KL {kl_text(row)} nats against {row.agreement.against}"
    elif row.agreement:
        yield "reference for the logits of the others"


def listing(rows: Sequence[Row], lines: Callable[[Row], Iterable[str]]) -> Iterator[str]:
    """The lines of rows, each point below its varied settings, except tokens per expert, which rows name."""
    groups = groups_of(rows)
    keys = [key for key in varying([group[0].settings for group in groups]) if key != TOKENS]
    for group in groups:
        if keys:
            yield f"{setting_words({key: group[0].settings.get(key) for key in keys})}:"
        for row in group:
            yield from lines(row)
