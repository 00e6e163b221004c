"""`eval`: what features cost in accuracy, on a suite of questions."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.run.request import plan_request, suite_request


def run(overrides: Sequence[str]) -> int:
    """Evaluate, grade and report. Exit code 4 where a cell failed."""
    request = suite_request(overrides)
    planned = plan_request(request)
    # What measures and reports takes a tenth of a second to load: only for a request that is not refused.
    from ktbench.cli.show import show
    from ktbench.run.execute import execute

    return show(execute(request, planned, ["python", "-m", "ktbench", "eval", *overrides]))
