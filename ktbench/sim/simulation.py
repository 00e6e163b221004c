"""One step of a cell, simulated on its machine: its time, what it must do at least, and what counters would count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from statistics import mean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.cost_cpu import TASKS, cpu_graph
from ktbench.sim.cost_gpu import gpu_costs
from ktbench.sim.graph import Execution, Graph, busy_share, execute
from ktbench.sim.host_kernels import TASK_COLUMNS
from ktbench.sim.routing import SAMPLES, counts, coverage, loads_of, selections
from ktbench.sim.workloads import (
    Pass,
    build_graph,
    deferred_experts,
    has_effect,
    head_rows,
    kept_experts,
    machine_of,
    passes_of,
    workload_of,
)
from ktbench.spec.engine import Device, all_features, choose_deferral, deferral_candidates, seen_features
from ktbench.spec.features import FeatureValue
from ktbench.spec.machine import MachineSpec, of_cores
from ktbench.spec.peers import OURS
from ktbench.spec.record import RoofSample, StepParts, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import dense_work, least_work, sizes_of, total_work, trained_work
from ktbench.spec.timeline import RESOURCES, Span, Timeline
from ktbench.spec.weights import expert_bytes, weight_bits

# The calibration of our own engine where the device role runs on CPU cores.
ON_CORES = "ktbench"
_TITLES = {
    "host": "the host's experts",
    "device": "the device",
    "link": "copies between host and device",
    "launch": "launches",
}


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
    spec, cost = _checked(spec)
    resolved = with_deferral(spec, resolved_deferral(spec, cost))
    execution = execute((graph := step_graph(resolved, cost)).tasks)
    timeline = Timeline(
        title=spec.summary, spans=tuple(_spans(graph, execution)), step_s=execution.total_s, provenance="simulated"
    )
    shares: dict[str, float] = {
        name: timeline.busy_s(name) / execution.total_s for name in RESOURCES if timeline.busy_s(name)
    }
    parts = workload_of(spec).parts
    return Simulation(
        step_s=execution.total_s,
        timeline=timeline,
        work=step_work(resolved, cost),
        counters=step_counters(resolved, cost),
        roof=_roof(spec, machine_of(spec)),
        shares=shares,
        bottleneck=_TITLES[max(shares, key=lambda name: shares[name])],
        chosen=_chosen(resolved, cost),
        notes=tuple(_notes(spec, resolved)),
        parts=parts(graph, execution) if parts else None,
    )


def step_s(spec: RunSpec) -> float:
    """`Simulation.step_s` alone. Raises ValueError as `simulate`."""
    return step_seconds(*_checked(spec))


def _checked(spec: RunSpec) -> tuple[RunSpec, Calibration]:
    """A cell on the cores that it uses, and the calibration of its machine."""
    spec = on_used_cores(spec)
    machine = machine_of(spec)
    cost = read_calibration(machine.calibration)
    if (machine.gpu is None) != (cost.name == ON_CORES):
        raise ValueError(
            f"machine.calibration={cost.name}: {ON_CORES} is for machines without a GPU, the others are not"
        )
    if machine.gpu is not None:
        _require_gpu_cell(spec)
    return spec, cost


def with_all_features(spec: RunSpec) -> RunSpec:
    """A cell with all features of decode that its described machine has. Raises ValueError for a cell without one."""
    machine = machine_of(spec)
    device: Device = "cpu" if machine.gpu is None else "cuda"
    return replace(spec, engine=all_features(spec.engine, machine.feature_reasons, phase="decode", device=device))


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


def _notes(spec: RunSpec, resolved: RunSpec) -> Iterator[str]:
    if spec.engine.deferral == "auto":
        yield f"deferral=auto chose {resolved.engine.deferral}"
    yield from workload_of(spec).notes(spec)


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


# A tile of AMX holds 16 rows of activations against a KiB of weights (kernels/core/layout.h).
_TILE_ROWS, _TILE_BYTES = 16, 1024


def step_work(spec: RunSpec, cost: Calibration) -> Work:
    """Weight bytes that a step reads once, its operations and tokens, as the engine counts them (engine/work.py).

    With a GPU of the host's routed experts alone.
    """
    shape, has_gpu = spec.model.shape, _has_gpu(spec)
    if has_gpu:
        forward = _host_work(spec, cost)
    elif workload_of(spec).single_layer:
        forward = _layer_work(spec, cost)
    else:
        forward = total_work([_pass_work(spec, cost, one) for one in passes_of(spec)])
    if not workload_of(spec).trains:
        return forward
    attention, expert = shape.layers * spec.lora.attention, shape.moe_layers * spec.lora.expert
    return trained_work(forward, shape, on_device=has_gpu, attention=attention, expert=expert)


def step_counters(spec: RunSpec, cost: Calibration) -> dict[str, int]:
    """Counters of the feature table (`ktbench.spec.features`) over one step whose deferral is a number."""
    engine = spec.engine
    tokens, layers = spec.workload.tokens_per_step, spec.model.shape.moe_layers
    replays, linear_calls, streamed_bytes = 0, 0, 0
    if _has_gpu(spec):
        calls, (streamed, drawn) = _gpu_calls(spec, cost), _loads(spec, cost, streamed=True)
        replays = sum(gpu_costs(spec, cost).captured(work) for work in passes_of(spec))
        streamed_bytes = round(drawn * float((streamed > 0).sum()) * sizes_of(spec).expert_bytes)
    else:
        calls, linear_calls = _cpu_calls(spec, cost), _linear_calls(spec)
    return _experts_counters(spec, calls) | {
        "graph_replays": replays,
        "linear_calls": linear_calls,
        "deferred_experts": tokens * deferred_experts(spec) * (layers - 1),
        "skipped_experts": tokens * engine.skipping * layers if has_effect(spec) else 0,
        "streamed_bytes": streamed_bytes,
        "flag_answers": 0,  # not simulated
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Calls:
    """Experts that run on the host in the layers drawn: `tokens` [N] of each.

    `layers` is how many layers of the step one layer drawn stands for, `kernels` and `tasks` are those of an expert.
    """

    tokens: NDArray[np.int64]
    layers: float
    kernels: int
    tasks: int
    expert_bytes: int
    tile_bytes: int


def _experts_counters(spec: RunSpec, calls: _Calls) -> dict[str, int]:
    """The counters of kernels and tasks, which count what the simulation schedules: about as many as the operator's."""
    engine, tokens = spec.engine, calls.tokens
    on_amx = tokens[tokens >= engine.first_on_amx]
    tiles = float(np.ceil(on_amx / _TILE_ROWS).sum()) * calls.tile_bytes / _TILE_BYTES
    seen = {
        "avx2_calls": calls.kernels * len(tokens) if engine.avx2 else 0,
        "avx512_calls": calls.kernels * (len(tokens) - len(on_amx)) if engine.avx512 else 0,
        "amx_tiles": tiles,
        "tasks_dynamic": len(tokens) * calls.tasks if engine.dynamic else 0,
        "local_bytes": len(tokens) * calls.expert_bytes if engine.numa else 0,
    }
    return {name: round(calls.layers * count) if engine.fused else 0 for name, count in seen.items()}


def _gpu_calls(spec: RunSpec, cost: Calibration) -> _Calls:
    """KTransformers: gate and up are split over the domains, down has all its columns in each."""
    sizes, (loads, layers) = sizes_of(spec), _loads(spec, cost, streamed=False)
    domains = machine_of(spec).domains
    return _Calls(
        tokens=loads[loads > 0],
        layers=layers,
        kernels=1,
        tasks=2 * ceil(sizes.expert_ffn / TASK_COLUMNS) + domains * ceil(sizes.hidden / TASK_COLUMNS),
        expert_bytes=sizes.expert_bytes,
        tile_bytes=sizes.expert_bytes,
    )


def _cpu_calls(spec: RunSpec, cost: Calibration) -> _Calls:
    shape, work = spec.model.shape, spec.workload
    each = [work.batch] if workload_of(spec).single_layer else [one.rows for one in passes_of(spec)]
    drawn = [_expert_tokens(spec, cost, rows) for rows in each]
    return _Calls(
        tokens=np.concatenate([tokens for layers in drawn for tokens in layers]),
        layers=(1 if workload_of(spec).single_layer else shape.moe_layers) / len(drawn[-1]),
        kernels=TASKS,
        tasks=TASKS,
        expert_bytes=expert_bytes(shape, spec.precision),
        tile_bytes=max(weight_bits(spec.precision), 8) // 8 * shape.expert_params,
    )


def _linear_calls(spec: RunSpec) -> int:
    """Products of an attention, two of an MLP, the head.

    An attention has queries, keys and values as one, and the output; latent attention queries in one step or two,
    latents, and the output.
    """
    if not spec.engine.packed_dense or workload_of(spec).single_layer:
        return 0
    shape, config = spec.model.shape, spec.model.config
    low_rank = config.get("q_lora_rank") is not None
    attention = 3 + low_rank if config.get("kv_lora_rank") else 2
    mlps = shape.dense_layers + (shape.moe_layers if shape.shared_ffn else 0)
    return len(passes_of(spec)) * (attention * shape.layers + 2 * mlps + 1)


def _host_work(spec: RunSpec, cost: Calibration) -> Work:
    """Bytes of the experts that were selected, each read once a layer, and the arithmetic of all selections."""
    sizes, (loads, layers) = sizes_of(spec), _loads(spec, cost)
    return Work(
        weight_bytes=round(layers * float((loads > 0).sum()) * sizes.expert_bytes),
        flops=round(layers * float(loads.sum()) * sizes.expert_flops),
        tokens=spec.workload.tokens_per_step,
    )


def _layer_work(spec: RunSpec, cost: Calibration) -> Work:
    shape, tokens = spec.model.shape, spec.workload.batch
    nbytes = _experts_bytes(spec, _expert_tokens(spec, cost, tokens))
    return least_work(shape, None, tokens=tokens, selections=tokens * shape.top_k, experts_bytes=nbytes)


def _pass_work(spec: RunSpec, cost: Calibration, work: Pass) -> Work:
    shape = spec.model.shape
    return least_work(
        shape,
        dense_work(spec, head_rows(spec, work)),
        tokens=work.rows,
        selections=work.rows * shape.moe_layers * kept_experts(spec),
        experts_bytes=shape.moe_layers * _experts_bytes(spec, _expert_tokens(spec, cost, work.rows)),
    )


def _experts_bytes(spec: RunSpec, layers: Sequence[NDArray[np.int64]]) -> int:
    precision = spec.precision if spec.engine.fused else "bf16"
    return round(mean(len(tokens) for tokens in layers) * expert_bytes(spec.model.shape, precision))


def _expert_tokens(spec: RunSpec, cost: Calibration, rows: int) -> list[NDArray[np.int64]]:
    """Of each layer drawn the tokens of every expert that runs."""
    return [counts(ids[:, : kept_experts(spec)]) for ids in selections(spec, cost, rows)]


def _loads(spec: RunSpec, cost: Calibration, *, streamed: bool | None = None) -> tuple[NDArray[np.int64], float]:
    """[N, E] tokens of each expert in a layer drawn for a pass, and how many layers on the host it stands for.

    Of passes whose experts stream or do not where `streamed` is given.
    """
    costs, none = gpu_costs(spec, cost), np.zeros((0, spec.model.shape.experts), dtype=np.int64)
    passes = [one for one in passes_of(spec) if streamed in (None, costs.streams(one))]
    drawn = [loads_of(spec, cost, one.rows, kept_experts(spec)) for one in passes]
    return np.concatenate([none, *drawn]), _host_layers(spec, cost) / SAMPLES


def _host_layers(spec: RunSpec, cost: Calibration) -> float:
    """Layers whose selections the host serves, by the mean of their shares."""
    if workload_of(spec).single_layer:
        return 1.0
    layers = spec.model.shape.moe_layers
    return layers * (1.0 - float(np.mean([coverage(spec, cost, layer).device for layer in range(layers)])))


def _has_gpu(spec: RunSpec) -> bool:
    return spec.machine is not None and spec.machine.gpu is not None
