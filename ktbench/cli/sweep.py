"""`sweep`: measures or simulates every cell of an ablation, then writes its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.config import split_launcher
from ktbench.run.request import plan_request, sweep_request, take_word


def run(overrides: Sequence[str]) -> int:
    """Measure and report, with `hydra/launcher=NAME` on several nodes. Exit code 4 where a cell failed.

    With `shard=I/N` a part is measured, which `merge` reports with the others.
    """
    launch, words = split_launcher(overrides)
    words, shard = take_word("sweep", words, "shard", "one as I/N, the I-th of N")
    if shard is not None:
        return _measure_shard(words, shard)
    request, command = sweep_request(words), ["python", "-m", "ktbench", "sweep", *overrides]
    # What measures and reports takes a tenth of a second to load: only for a request that is not refused.
    from ktbench.cli.show import show
    from ktbench.run.execute import execute

    if launch is not None:
        from ktbench.run.cluster.spread import spread

        return show(spread(request, launch, command))
    return show(execute(request, plan_request(request), command))


def _measure_shard(words: Sequence[str], shard: str) -> int:
    request = sweep_request(words)
    from ktbench.run.cluster.parts import measure_shard

    folder = measure_shard(request, shard, ["python", "-m", "ktbench", "sweep", *words])
    print(f"wrote {folder}; when all shards have ended: ktbench merge {request.run_name}")
    return 0
