"""Runs for pages, in memory: writing a thousand cells into a log would take longer than all else."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

from ktbench.results import Run
from ktbench.spec.record import Outcome
from tests.report.synthetic import MACHINE, NO_CUDA, NO_NUMA, Arm, Store

DECODE = Store(
    arms=(
        Arm(label="base", step_ms=182.0),
        Arm(label="+v", step_ms=61.0),
        Arm(label="+v+d", step_ms=60.2),
        Arm(label="+v+d+n", outcome=Outcome.UNSUPPORTED, why=NO_NUMA),
        Arm(label="+v+d+n+c", outcome=Outcome.UNSUPPORTED, why=NO_CUDA),
    ),
    rounds=8,
    run="decode",
)


def in_memory(store: Store) -> Run:
    """The run that a store would write."""
    return Run(folder=Path(store.run), header=store.header(), environments=(MACHINE,), records=tuple(store.records()))


def many_cells(count: int) -> Run:
    """A run of about `count` cells, ten to a point, with a time of its own for every turn."""
    features, tails = ("+v", "+m", "+v+d"), ("", " deferral=1", " skipping=1")
    labels = [f"{one}{tail}" for one, tail in product(features, tails)][:8]
    arms = (Arm(label="base", step_ms=182.0), *(Arm(label=label, step_ms=60.0 + n) for n, label in enumerate(labels)))
    prompts = tuple(64 * n for n in range(1, count // (len(arms) + 1) + 1))
    run = in_memory(Store(arms=arms, prompts=prompts, rounds=6, steps=2, run="many", title="Many cells"))
    timed = (
        replace(record, started=f"2026-01-01T{n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d}+00:00")
        for n, record in enumerate(run.records)
    )
    return replace(run, records=tuple(timed))
