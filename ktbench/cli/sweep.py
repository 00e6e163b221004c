"""`sweep`: measures or simulates every cell of an ablation, then writes its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.config import split_launcher
from ktbench.run.request import plan_request, sweep_request


def run(overrides: Sequence[str]) -> int:
    """Measure and report, with `hydra/launcher=NAME` on several nodes. Exit code 4 where a cell failed."""
    launch, words = split_launcher(overrides)
    request, command = sweep_request(words), ["python", "-m", "ktbench", "sweep", *overrides]
    # What measures and reports takes a tenth of a second to load: only for a request that is not refused.
    from ktbench.cli.show import show
    from ktbench.run.execute import execute

    if launch is not None:
        from ktbench.run.cluster.spread import spread

        return show(spread(request, launch, command))
    return show(execute(request, plan_request(request), command))
