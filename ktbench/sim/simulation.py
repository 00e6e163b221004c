"""One step of a cell, simulated on its machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

import yaml

from ktbench.resources import data_folder
from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.cost_cpu import cpu_graph
from ktbench.sim.cost_gpu import gpu_costs
from ktbench.sim.executor import Execution, Graph, busy_share, execute
from ktbench.sim.graph import LOSS, OPTIMISER, build_graph, machine_of, passes_of
from ktbench.sim.work import step_counters, step_work
from ktbench.spec.engine import choose_deferral, deferral_candidates, seen_features
from ktbench.spec.features import FeatureValue
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.machine import MachineSpec, of_cores
from ktbench.spec.peers import OURS
from ktbench.spec.record import RoofSample, StepParts, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import RESOURCES, Span, Timeline
from ktbench.spec.wire import from_plain

# The calibration of our own engine where the device role runs on CPU cores.
ON_CORES = "ktbench"
_TITLES = {
    "host": "the host's experts",
    "device": "the device",
    "link": "copies between host and device",
    "launch": "launches",
}


# Injection rules whose operators the costs are those of, and which of these act where the device role is a GPU.
_RULES = "lean"
_ON_GPUS = ("linear", "rms_norm", "latent_attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """One step of a cell on a described machine.

    `timeline` holds its spans, `work` what the host had to do in it, `counters` what the engine's own counters would
    count, `roof` the limits of the machine. `shares` hold for each resource the share of the step in which it works,
    `bottleneck` names the busiest one, `chosen` are features other than requested, `notes` what was assumed or chosen.
    `parts` are there of a training step.
    """

    step_s: float
    timeline: Timeline
    work: Work
    counters: Mapping[str, int]
    roof: RoofSample
    shares: Mapping[str, float]
    bottleneck: str
    chosen: Mapping[str, FeatureValue]
    notes: tuple[str, ...] = ()
    parts: StepParts | None = None


def simulate(spec: RunSpec) -> Simulation:
    """One step of a cell on its machine, under the machine's calibration.

    Raises ValueError for a cell without a machine, for a feature without a model, and for routing or placement that
    does not fit.
    """
    spec = on_used_cores(spec)
    machine = machine_of(spec)
    cost = read_calibration(machine.calibration)
    if (machine.gpu is None) != (cost.name == ON_CORES):
        raise ValueError(
            f"machine.calibration={cost.name}: {ON_CORES} is for machines without a GPU, the others are not"
        )
    if machine.gpu is not None:
        _require_gpu_cell(spec)
    resolved = with_deferral(spec, resolved_deferral(spec, cost))
    execution = execute((graph := step_graph(resolved, cost)).tasks)
    timeline = Timeline(
        title=spec.summary, spans=tuple(_spans(graph, execution)), step_s=execution.total_s, provenance="simulated"
    )
    shares: dict[str, float] = {
        one: timeline.busy_s(one) / execution.total_s for one in RESOURCES if timeline.busy_s(one)
    }
    return Simulation(
        step_s=execution.total_s,
        timeline=timeline,
        work=step_work(resolved, cost),
        counters=step_counters(resolved, cost),
        roof=_roof(spec, machine),
        shares=shares,
        bottleneck=_TITLES[max(shares, key=lambda one: shares[one])],
        chosen=_chosen(resolved, cost),
        notes=tuple(_notes(spec, resolved)),
        parts=step_parts(graph, execution) if spec.workload.phase == "train" else None,
    )


def on_used_cores(spec: RunSpec) -> RunSpec:
    """A cell with `engine.threads` beside a GPU as one on a machine of so many cores; any other as it is.

    On machines without a GPU the cores of each role are counted where its costs are (`cost_cpu.role_cores`). Raises
    ValueError for threads that the domains cannot share evenly.
    """
    machine, threads = machine_of(spec), spec.engine.threads
    if machine.gpu is None or threads is None:
        return spec
    if threads > machine.domains * machine.cores or threads % machine.domains:
        raise ValueError(
            f"engine.threads={threads}: {machine.name} has {machine.domains} domains of {machine.cores} cores, "
            "as many of each are simulated"
        )
    cores = threads // machine.domains
    used = replace(machine, cores=cores, **of_cores(asdict(machine), cores))
    return replace(spec, machine=used, engine=replace(spec.engine, threads=None))


def step_parts(graph: Graph, execution: Execution) -> StepParts:
    """Forward, backward and optimiser of a training step; it has no losses, as nothing is computed."""
    names = [task.name for task in graph.tasks]
    forward_s, began_s = execution.end_s[names.index(LOSS)], execution.begin_s[names.index(OPTIMISER)]
    return StepParts(
        forward_s=forward_s,
        backward_s=began_s - forward_s,
        optimiser_s=execution.total_s - began_s,
        losses=(),
    )


def _chosen(spec: RunSpec, cost: Calibration) -> dict[str, FeatureValue]:
    """What evidence shows in place of `auto`, and of features that have nothing to do; see `System.chosen`."""
    chosen: dict[str, FeatureValue] = {"deferral": spec.engine.deferral}
    if not spec.engine.device_prefill_tokens:
        return chosen
    streams = [gpu_costs(spec, cost).streams(work) for work in passes_of(spec)]
    return chosen | seen_features(spec.engine, sum(streams), len(streams))


def step_graph(spec: RunSpec, cost: Calibration) -> Graph:
    """The tasks of one step of a cell; with deferral=auto of the number chosen.

    Raises ValueError in one line for what is not simulated.
    """
    spec = on_used_cores(spec)
    machine, resolved = machine_of(spec), with_deferral(spec, resolved_deferral(spec, cost))
    return cpu_graph(resolved, cost) if machine.gpu is None else build_graph(gpu_costs(resolved, cost))


def step_seconds(spec: RunSpec, cost: Calibration) -> float:
    """Seconds of one step."""
    return execute(step_graph(spec, cost).tasks).total_s


def resolved_deferral(spec: RunSpec, cost: Calibration) -> int:
    """Experts that a token defers; for `auto` as `ktbench.spec.engine` chooses from simulated steps."""
    if spec.engine.deferral != "auto":
        return spec.engine.deferral
    candidates = deferral_candidates(spec.model.shape.top_k)
    graphs = [step_graph(with_deferral(spec, number), cost) for number in candidates]
    return choose_deferral([busy_share(graph.tasks, "host") for graph in graphs])


def with_deferral(spec: RunSpec, count: int | Literal["auto"]) -> RunSpec:
    """The cell with so many experts deferred."""
    return replace(spec, engine=replace(spec.engine, deferral=count))


def _require_gpu_cell(spec: RunSpec) -> None:
    if spec.system != OURS:
        raise ValueError(f"system={spec.system}: only system=ktbench is simulated")
    if spec.engine.packed_dense:
        raise ValueError("+l: the lean device role is one of CPU cores; with a GPU linear layers are PyTorch's")


def rules_not_simulated(spec: RunSpec) -> str:
    """Why a cell with these injection rules has no model; empty where it has one.

    Rules of your own have to be those of `lean` for the operators that act in the cell.
    """
    inject, allowed = spec.inject, f"; set inject={_RULES} or machine=here"
    if spec.engine.fused and inject.precisions_of("experts"):
        return f"precisions of single layers are not simulated{allowed}"
    if inject.name == _RULES or inject == InjectSpec():
        return ""
    own, known = (_acting(rules, spec) for rules in (inject, _simulated_rules()))
    if others := [rule for key, rule in own.items() if key not in known]:
        return f"the rule {_titled(others[0])} is not one of {_RULES}, whose operators are simulated{allowed}"
    if missing := [rule for key, rule in known.items() if key not in own]:
        return f"the rule {_titled(missing[0])} of {_RULES}, whose operators are simulated, is missing{allowed}"
    return ""


def _acting(inject: InjectSpec, spec: RunSpec) -> dict[str, InjectRule]:
    """By what they replace and with what: names of rules, and their order, change nothing."""
    acting = (rule for rule in inject.rules if _acts(rule.operator, spec))
    return {f"{rule.operator} {rule.wants} {sorted(rule.args.items())}": rule for rule in acting}


def _acts(operator: str, spec: RunSpec) -> bool:
    """Whether it is for rules to say what an operator replaces in a cell; routed experts are replaced in every cell."""
    if operator == "experts" or spec.workload.phase == "layer":
        return False
    if operator == "shared":
        return spec.engine.roles_concurrent
    return operator in _ON_GPUS if spec.engine.device == "cuda" else spec.engine.packed_dense


def _titled(rule: InjectRule) -> str:
    return f"{rule.name} (operator {rule.operator})"


@cache
def _simulated_rules() -> InjectSpec:
    text = (data_folder("conf") / "inject" / f"{_RULES}.yaml").read_text(encoding="utf-8")
    return from_plain(yaml.safe_load(text), InjectSpec)


def _notes(spec: RunSpec, resolved: RunSpec) -> Iterator[str]:
    if spec.engine.deferral == "auto":
        yield f"deferral=auto chose {resolved.engine.deferral}"
    work = spec.workload
    if spec.engine.cuda_graph and work.phase == "prefill" and not work.has_whole_chunk:
        yield "+c changes nothing: a graph holds whole chunks of a prompt, set workload.chunk"


def _spans(graph: Graph, execution: Execution) -> Iterator[Span]:
    """In order of their begin; tasks that take no time only order others."""
    for place in sorted(range(len(graph.tasks)), key=lambda one: (execution.begin_s[one], one)):
        task = graph.tasks[place]
        if task.seconds > 0:
            yield Span(
                resource=task.resource,
                name=task.name,
                kind=task.kind,
                begin_s=execution.begin_s[place],
                end_s=execution.end_s[place],
                layer=task.layer,
            )


def _roof(spec: RunSpec, machine: MachineSpec) -> RoofSample:
    """All domains' read bandwidth, and the peak of the cell's instructions; base uses the widest that there are."""
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
