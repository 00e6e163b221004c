"""`eval`: what features cost in accuracy, on a suite of questions."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.cli.show import show
from ktbench.config.suites import suite_names
from ktbench.run.execute import execute
from ktbench.run.request import eval_request, plan_request
from ktbench.spec.errors import RequestError


def run(overrides: Sequence[str]) -> int:
    """Evaluate, grade and report. Exit code 4 where a cell failed."""
    request = eval_request(overrides)
    if request.suite is None:
        raise RequestError(f"eval: name a suite with +suite=NAME; allowed are {', '.join(suite_names())}")
    planned = plan_request(request)
    return show(execute(request, planned, ["python", "-m", "ktbench", "eval", *overrides]))
