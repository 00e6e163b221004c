"""What a simulation says of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.cores import chosen_deferral, cores_graph
from ktbench.sim.deferral import with_deferral
from ktbench.sim.deferring import choose
from ktbench.sim.executor import Graph, Played, play
from ktbench.sim.steps import step_graph
from ktbench.sim.work import cores_counters, cores_work, step_counters, step_work
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import RoofSample, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import RESOURCES, Span, Timeline


def spans_of(graph: Graph, played: Played) -> Iterator[Span]:
    """In order of their begin; tasks that take no time only order others."""
    for place in sorted(range(len(graph.tasks)), key=lambda one: (played.begin_s[one], one)):
        task = graph.tasks[place]
        if task.seconds > 0:
            yield Span(
                resource=task.resource,
                name=task.name,
                kind=task.kind,
                begin_s=played.begin_s[place],
                end_s=played.end_s[place],
                layer=task.layer,
            )


# The calibration of our own engine where the device role runs on CPU cores.
ON_CORES = "ktbench"
_WORDS = {
    "host": "the host's experts",
    "device": "the device",
    "link": "copies between host and device",
    "launch": "launches",
}


def simulate(spec: RunSpec) -> Simulation:
    """One step of a cell on its machine, under the machine's calibration.

    Raises ValueError for a cell without a machine, for a feature that the model knows nothing of, and for routing or
    placement that cannot be had.
    """
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    cost = read_calibration(spec.machine.calibration)
    if (spec.machine.gpu is None) != (cost.name == ON_CORES):
        raise ValueError(
            f"machine.calibration={cost.name}: {ON_CORES} is for machines without a GPU, the others are not"
        )
    return _on_cores(spec, spec.machine, cost) if cost.name == ON_CORES else _with_gpu(spec, spec.machine, cost)


def _settled(spec: RunSpec, cost: Calibration) -> RunSpec:
    return with_deferral(spec, choose(spec, cost)) if spec.engine.deferral == "auto" else spec


def _with_gpu(spec: RunSpec, machine: MachineSpec, cost: Calibration) -> Simulation:
    if spec.system != "ktbench":
        raise ValueError(f"system={spec.system}: only system=ktbench is simulated")
    if spec.engine.packed_dense:
        raise ValueError("+l: the lean device role is one of CPU cores; with a GPU linear layers are PyTorch's")
    if spec.workload.chunk is not None:
        raise ValueError(f"workload.chunk={spec.workload.chunk}: with a GPU a prompt is simulated in one piece")
    settled = _settled(spec, cost)
    graph = step_graph(settled, cost)
    notes: tuple[str, ...] = (f"deferral=auto chose {settled.engine.deferral}",) if settled is not spec else ()
    if spec.engine.cuda_graph and spec.workload.phase == "prefill":
        notes += ("+c changes nothing: a graph holds the decode step alone",)
    return _simulation(settled, machine, graph, step_work(settled, cost), step_counters(settled, cost), notes)


def _on_cores(spec: RunSpec, machine: MachineSpec, cost: Calibration) -> Simulation:
    auto = spec.engine.deferral == "auto"
    notes = (f"deferral=auto chose {chosen_deferral(spec, cost)}",) if auto else ()
    return _simulation(
        spec, machine, cores_graph(spec, cost), cores_work(spec, cost), cores_counters(spec, cost), notes
    )


def _simulation(
    spec: RunSpec, machine: MachineSpec, graph: Graph, work: Work, counters: dict[str, int], notes: tuple[str, ...]
) -> Simulation:
    played = play(graph.tasks)
    timeline = Timeline(
        title=spec.summary, spans=tuple(spans_of(graph, played)), step_s=played.total_s, provenance="simulated"
    )
    shares: dict[str, float] = {one: timeline.busy_s(one) / played.total_s for one in RESOURCES if timeline.busy_s(one)}
    return Simulation(
        step_s=played.total_s,
        timeline=timeline,
        work=work,
        counters=counters,
        roof=_roof(spec, machine),
        shares=shares,
        bottleneck=_WORDS[max(shares, key=lambda one: shares[one])],
        notes=notes,
    )


def _roof(spec: RunSpec, machine: MachineSpec) -> RoofSample:
    """All domains' read bandwidth, and the peak of the instructions that the cell has; base takes what there is."""
    amx = (spec.engine.amx or not spec.engine.fused) and machine.amx_tflops is not None
    bf16, int8 = (
        (machine.amx_tflops, machine.amx_int8_tops) if amx else (machine.vector_tflops, machine.vector_int8_tops)
    )
    return RoofSample(
        read_bytes_per_s=machine.domains * machine.read_gb_per_s * 1e9,
        peak_flops=machine.domains * ((bf16 if spec.dtype == "bf16" else int8) or 0.0) * 1e12,
        peak_isa="amx" if amx else machine.vector,
        peak_dtype=spec.dtype,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One step of a cell on a machine of paper.

    `timeline` holds its spans, `work` what the host had to do in it, `counters` what the engine's own counters would
    have seen, `roof` the limits of the machine. `shares` say for each resource which share of the step it worked,
    `bottleneck` names the one that the step would gain most from, `notes` what was assumed or chosen on the way.
    """

    step_s: float
    timeline: Timeline
    work: Work
    counters: Mapping[str, int]
    roof: RoofSample
    shares: Mapping[str, float]
    bottleneck: str
    notes: tuple[str, ...] = ()
