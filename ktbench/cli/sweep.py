"""`sweep`: measures or simulates every cell of an ablation, then writes its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

SUMMARY = "measure or simulate an ablation (+ablation=NAME), then write tables and figures"


def run(overrides: Sequence[str]) -> int:
    """Measure, report, and say with the exit code whether every cell ended well.

    With `hydra/launcher=NAME` the cells are spread over nodes.
    """
    from ktbench.cli.show import show
    from ktbench.config import ablation_names, split_launcher
    from ktbench.run.execute import execute
    from ktbench.run.request import plan_request, read_request
    from ktbench.spec.errors import RequestError

    launch, words = split_launcher(overrides)
    request, command = read_request(words), ["python", "-m", "ktbench", "sweep", *overrides]
    if not request.is_sweep:
        raise RequestError(f"sweep: name one with +ablation=NAME; allowed are {', '.join(ablation_names())}")
    if launch is not None:
        from ktbench.run.cluster import spread

        return show(spread(request, launch, command))
    return show(execute(request, plan_request(request), command))
