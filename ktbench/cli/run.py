"""`run`: one cell, its record."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "measure one cell, or simulate it (machine=NAME)"


def run(overrides: Sequence[str]) -> int:
    """Measure or simulate the one cell that the overrides describe. Exit code 4 where it did not end well or cannot.

    With `inject.show=true` nothing is measured: the modules of the model and what takes their place are shown.
    """
    from ktbench.cli.inject import show_injection
    from ktbench.cli.show import show
    from ktbench.run.execute import execute
    from ktbench.run.request import plan_request, read_request
    from ktbench.spec.errors import RequestError

    request = read_request(overrides)
    if request.is_sweep:
        raise RequestError("run: takes one cell; use `sweep` for lists and ablations")
    if request.show:
        return show_injection(request.parts[0].spec)
    planned = plan_request(request)
    return show(execute(request, planned, ["python", "-m", "ktbench", "run", *overrides]), alone=True)
