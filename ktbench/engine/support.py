"""What the engine cannot run, derived from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from ktbench.engine.protocol import Unsupported
from ktbench.spec.engine import MIN_IMMEDIATE_EXPERTS
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.weights import BLOCK, BLOCK_BYTES, FORMATS

T = TypeVar("T")


def require(spec: RunSpec, loaded: ModelSpec) -> None:
    """Raises ValueError for another model than is loaded, and Unsupported with the reason for what cannot run."""
    if spec.model != loaded:
        raise ValueError(f"model {spec.model.name} requested, but {loaded.name} is loaded")
    if why := unsupported(spec):
        raise Unsupported(why)


def configured(part: T | None) -> T:
    """What `configure` sets. Raises ValueError where it was not called yet."""
    if part is None:
        raise ValueError("configure comes before every other call")
    return part


def unsupported(spec: RunSpec) -> str:
    """Why this engine cannot run the cell, on whatever machine; empty where it can."""
    return next(_reasons(spec), "")


def _reasons(spec: RunSpec) -> Iterator[str]:
    engine, shape, name = spec.engine, spec.model.shape, spec.model.name
    deferring = bool(engine.deferral or engine.skipping)
    yield from _device_reasons(spec)
    if spec.workload.phase == "prefill" and deferring and not engine.defer_prefill:
        yield "Expert Deferral and Expert Skipping act in decode only, unless engine.defer_prefill=true"
    if spec.workload.phase == "layer":
        yield from _layer_reasons(spec)
    elif spec.precision != "bf16" and not engine.fused:
        yield f"base runs bf16 weights, as checkpoints hold them: precision={spec.precision} needs +v or +m"
    if engine.amx and not FORMATS[spec.precision].amx:
        yield f"+m: AMX has no kernels for precision={spec.precision}, whose scales differ inside a tile: leave out +m"
    if spec.precision in BLOCK_BYTES and (shape.hidden % BLOCK or shape.expert_ffn % BLOCK):
        sizes = f"{shape.hidden} and {shape.expert_ffn}"
        yield f"precision={spec.precision} has blocks of {BLOCK} weights, the widths {sizes} are no multiples"
    if engine.deferral and shape.moe_layers < 2:
        yield f"Expert Deferral needs a later MoE layer, {name} has {shape.moe_layers}"
    if engine.deferral == "auto" and not (engine.apart and engine.fused):
        yield "deferral=auto watches the host role: needs engine.roles=split or engine.device=cuda, and +v or +m"
    if engine.deferral == "auto" and shape.top_k <= MIN_IMMEDIATE_EXPERTS:
        yield f"deferral=auto leaves {MIN_IMMEDIATE_EXPERTS} experts on time, {name} has top_k={shape.top_k}"
    if engine.placement.policy != "host" and not engine.fused:
        policy = engine.placement.policy
        yield f"engine.placement.policy={policy}: roles share experts in the fused operator, needs +v or +m"
    if engine.numa and engine.threads is not None and engine.threads < (engine.domains or 1):
        yield f"+n: engine.domains={engine.domains} need a thread each, there are engine.threads={engine.threads}"


def _device_reasons(spec: RunSpec) -> Iterator[str]:
    engine = spec.engine
    if engine.cuda_graph and engine.device == "cpu":
        yield "+c: there is no CUDA graph without a CUDA device, set engine.device=cuda"
    if engine.cuda_graph and not engine.fused:
        yield "+c: base runs its experts in Python on the host, which no graph replays: add +v or +m"
    if engine.cuda_graph and spec.workload.phase == "prefill":
        yield "+c: captures the decode step, prefill runs no graph"
    if engine.packed_dense and engine.device == "cuda":
        yield "+l: with engine.device=cuda the linear layers are PyTorch's, and +c takes its Python away"


def _layer_reasons(spec: RunSpec) -> Iterator[str]:
    work, model, engine = spec.workload, spec.model, spec.engine
    if engine.deferral or engine.skipping or engine.packed_dense or engine.apart:
        yield "workload.phase=layer has the routed experts alone: no deferral, skipping, +l or roles apart"
    if model.path is not None:
        yield f"workload.phase=layer has synthetic weights: model.path={model.path} is for prefill and decode"
    if work.routing == "recorded" and work.trace is None:
        yield "workload.routing=recorded: set workload.trace to FILE or FILE:ARRAY"
    pairs = work.batch * model.shape.top_k
    if work.active_experts is not None and pairs % work.active_experts:
        yield (
            f"workload.active_experts={work.active_experts}: must divide the {pairs} experts that "
            f"batch={work.batch} tokens select, top_k={model.shape.top_k} each"
        )
