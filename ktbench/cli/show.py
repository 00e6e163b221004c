"""Shows a finished run: the rows on stdout, the files it wrote, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from textwrap import fill

from ktbench.cli.streams import is_json
from ktbench.report.accuracy_table import accuracy_table, grids_below
from ktbench.report.conditions import UNPROVEN, conditions_of
from ktbench.report.data import json_lines
from ktbench.report.documents import NUMERIC, Document, documents_of, overview
from ktbench.report.equal_cells import equal_cells_sentence
from ktbench.report.markdown import common_to, grid, grid_of, table_grid
from ktbench.report.terminal import accuracy_line, name_width, row_line
from ktbench.report.write import write_report
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, accuracy_rows
from ktbench.results.quantities.writing import kl_text, top1_text
from ktbench.results.row import Row, groups_of
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of, the_part
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
    files = write_report(run)
    _tell_trackers(run)
    if is_json():
        print("\n".join(json_lines(run, files)))
    else:
        print(f"{run.header.title}\n")
        print("\n".join(_text(run)))
        print("", *_written(files), sep="\n")
    fine = _FINE_ALONE if alone else _FINE_IN_A_SWEEP
    return DONE if all(outcome in fine for outcome in _outcomes(run)) else FAILED


def _written(files: Iterable[Path]) -> Iterator[str]:
    """`wrote runs/decode/report: table.md, table.csv, …`, a line for each folder, broken where it is long."""
    for folder, inside in groupby(files, key=lambda file: file.parent):
        names = ", ".join(file.name for file in inside)
        yield fill(f"wrote {folder}: {names}", 120, subsequent_indent="  ", break_on_hyphens=False)


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


def _outcomes(run: Run) -> Iterator[Outcome | None]:
    """Outcomes of all cells: of their answers where a suite was evaluated, and of their timed steps."""
    if run.header.suite is None:
        yield from (row.outcome for row in rows_of(run))
        return
    for row in accuracy_rows(run):
        yield row.outcome
        yield from [row.row.outcome] if row.row.records else []


def _text(run: Run) -> Iterator[str]:
    """Rows and conditions; each of several parts below its title, and conditions common to all at the end.

    For a part with published numbers their table replaces the rows, unless it is an evaluation.
    """
    parts = parts_of(run)
    shown = [_shown(part) for part in parts]
    common = common_to([one.conditions for one in shown])
    for part, one in zip(parts, shown, strict=True):
        if len(parts) > 1:
            yield part.header.title
        yield from (*one.lines, "")
        if own := [sentence for sentence in one.conditions if sentence not in common]:
            yield from (*own, "")
    yield from common
    if papers := [one.paper for one in shown if one.paper]:
        yield from ("", *grid([*overview(papers)], NUMERIC))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """A part on a terminal; `paper` is set where it shows published numbers."""

    lines: tuple[str, ...]
    conditions: tuple[str, ...]
    paper: Document | None = None


def _shown(part: Run) -> _Shown:
    if part.header.suite is not None and part.header.cells:
        return _evaluation(part)
    return _paper(part) if the_part(part).published else _rows(part)


def _evaluation(part: Run) -> _Shown:
    """Answers, then the last of the grids below their table: changes, or scores where there are none."""
    answers = accuracy_rows(part)
    of_cell, rows = {row.row.cell: row for row in answers}, [row.row for row in answers]
    lines = listing(rows, lambda row: _answer_lines(of_cell[row.cell], name_width(rows)))
    below = [line for one in grids_below(part, answers)[-1:] for line in ("", f"{one.title}:", *grid_of(one))]
    return _Shown(lines=(*lines, *below), conditions=accuracy_table(part, answers).conditions)


def _answer_lines(row: AccuracyRow, width: int) -> Iterator[str]:
    yield accuracy_line(row, width)
    if row.row.timed:
        yield row_line(row.row, width)
    if row.evidence:
        yield f"{'':<{width}}   seen: {row.evidence}"


def _rows(part: Run) -> _Shown:
    rows = rows_of(part)
    lines = listing(rows, partial(_lines, width=name_width(rows)))
    equal = equal_cells_sentence(rows)
    below = ("", equal) if equal else ()
    return _Shown(lines=(*lines, *below, *_over_cells(part)), conditions=conditions_of(part, rows))


def _over_cells(part: Run) -> Iterator[str]:
    """The table of what was learned, and that of shares where the part's figure shows them."""
    for document in documents_of(part):
        if document.kind in ("attribution", "learning"):
            yield from ("", *table_grid(document.table, document.table.cells), *document.table.notes)


def _paper(part: Run) -> _Shown:
    *_, paper = documents_of(part)
    table = paper.table
    return _Shown(
        lines=(*table_grid(table, table.cells), *table.notes),
        conditions=(*table.conditions, *table.methods),
        paper=paper,
    )


def _lines(row: Row, width: int) -> Iterator[str]:
    """The row, then its remarks and evidence."""
    yield row_line(row, width)
    yield from (f"{'':<{width}}   {remark}" for remark in row.remarks)
    if row.timed:
        seen = row.evidence or row.missing["evidence"]
        facts = [
            seen if row.simulated else f"seen: {seen}",
            _error(row),
            *_answers(row),
            *([f"{row.outcome}: {row.why}"] if row.why else []),
        ]
        yield f"{'':<{width}}   {'; '.join(facts)}"


def _error(row: Row) -> str:
    return row.missing["error"] if row.error is None else f"error {row.error:.1e} against float32"


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
