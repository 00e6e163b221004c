"""`merge`: the shards of a sweep, measured by `sweep shard=I/N` wherever, as one run with its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.spec.errors import RequestError


def run(overrides: Sequence[str]) -> int:
    """Merge and report. Exit code 4 where a cell failed or is missing.

    Raises RequestError where a shard is still being measured.
    """
    if len(overrides) != 1:
        raise RequestError("merge: name one run, that of `sweep shard=I/N run_name=NAME`")
    from ktbench.cli.show import show
    from ktbench.run.cluster.parts import merge_shards

    return show(merge_shards(overrides[0]))
