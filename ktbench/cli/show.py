"""Shows a finished run: the table on stdout, the files it wrote, and the exit code."""

from __future__ import annotations

from ktbench.core.outcome import Outcome
from ktbench.report.rows import rows_of
from ktbench.store import Run

DONE = 0
A_CELL_FAILED = 4
# A machine without a GPU runs the sweep as well as it can: what it cannot run is a row with its reason, not a failure.
_FINE_IN_A_SWEEP = frozenset({Outcome.OK, Outcome.NOISY, Outcome.UNSUPPORTED})
_FINE_ALONE = frozenset({Outcome.OK, Outcome.NOISY})


def show(run: Run, *, alone: bool = False) -> int:
    """Write and print the report. Exit code 4 where a cell failed, or where the only cell could not run."""
    from ktbench.report.write import write_report

    files = write_report(run)
    print(next(file for file in files if file.suffix == ".md").read_text())
    for file in files:
        print(f"wrote {file}")
    fine = _FINE_ALONE if alone else _FINE_IN_A_SWEEP
    return DONE if all(row.outcome in fine for row in rows_of(run)) else A_CELL_FAILED
