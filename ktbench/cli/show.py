"""Shows a finished run: the rows on stdout, the files it wrote, and the exit code."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.core.outcome import Outcome
from ktbench.report.caption import conditions_of
from ktbench.report.row import Row
from ktbench.report.rows import row_line, rows_of
from ktbench.report.write import write_report
from ktbench.store import Run

DONE = 0
A_CELL_FAILED = 4
# A machine without a GPU runs the sweep as well as it can: what it cannot run is a row with its reason, not a failure.
_FINE_IN_A_SWEEP = frozenset({Outcome.OK, Outcome.NOISY, Outcome.UNSUPPORTED})
_FINE_ALONE = frozenset({Outcome.OK, Outcome.NOISY})


def show(run: Run, *, alone: bool = False) -> int:
    """Write the report and print its rows. Exit code 4 where a cell failed, or where the only cell could not run."""
    rows = rows_of(run)
    files = write_report(run)
    print(f"{run.header.title}\n")
    for row in rows:
        print("\n".join(_lines(row)))
    print("", *conditions_of(run, rows), "", *(f"wrote {file}" for file in files), sep="\n")
    fine = _FINE_ALONE if alone else _FINE_IN_A_SWEEP
    return DONE if all(row.outcome in fine for row in rows) else A_CELL_FAILED


def _lines(row: Row) -> Iterator[str]:
    """The row, then what proves it and what casts doubt on it."""
    yield row_line(row)
    if row.timed:
        error = "output not checked" if row.error is None else f"error {row.error:.1e} against float32"
        yield f"{'':<16}   seen: {row.evidence}; {error}{f'; {row.outcome}: {row.why}' if row.why else ''}"
