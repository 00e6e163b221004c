"""What it would take to measure on this machine what a part shows as published and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.results import Run
from ktbench.results.paper import PaperLine
from ktbench.results.row import Row
from ktbench.results.run import facts_of, the_part
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes

_GIB = 2**30


def unmeasured_sentences(run: Run, rows: Sequence[Row], lines: Sequence[PaperLine]) -> Iterator[str]:
    """Why no line has a measured value: what models need, what this machine has, and how to measure; else nothing."""
    if any(line.measured is not None for line in lines):
        return
    if any(line.phase == "accuracy" for line in lines):
        yield "Accuracy is not simulated."
    if any(not row.simulated for row in rows):
        return
    specs = [row.spec for row in rows if row.spec.machine is not None]
    if not specs:
        return
    total = facts_of(run).get("memory_total_gib")
    there = f"; this machine has {total} GiB" if total else ""
    needs = ", ".join(dict.fromkeys(map(_need, specs)))
    machine = specs[0].machine.name if specs[0].machine else ""
    yield (
        f"Nothing was measured here, as no cell of this machine was asked for: {_command(run, machine)} measures what "
        f"fits. Weights take {needs}{there}."
    )


def _command(run: Run, machine: str) -> str:
    """The sweep with this machine beside the one on paper; where it has several parts, in words."""
    both, command = f"machine={machine},here", " ".join(run.header.command)
    alone = not the_part(run).name and "machine=" not in command
    return f"`{command} {both}`" if alone else f"{both} after the ablation of this part alone"


def _need(spec: RunSpec) -> str:
    """`1,248 GiB (deepseek_v3, bf16)`; of a layer alone what its experts take."""
    return f"{_weight_bytes(spec) / _GIB:,.{_places(spec)}f} GiB ({spec.model.name}, {spec.precision})"


def _places(spec: RunSpec) -> int:
    return 0 if _weight_bytes(spec) >= 10 * _GIB else 1


def _weight_bytes(spec: RunSpec) -> int:
    shape = spec.model.shape
    one = shape.experts * expert_bytes(shape, spec.precision)
    if spec.workload.phase == "layer":
        return one
    return shape.moe_layers * one + dense_bytes(shape, spec.device_precision)
