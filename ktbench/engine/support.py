"""What the engine cannot run, told from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.core.spec import RunSpec


def unsupported(spec: RunSpec) -> str:
    """Why this engine cannot run the cell, on whatever machine; empty where it can."""
    return next(_reasons(spec), "")


def _reasons(spec: RunSpec) -> Iterator[str]:
    engine, shape, name = spec.engine, spec.model.shape, spec.model.name
    activation = spec.model.config.get("hidden_act", "silu")
    if engine.c:
        yield "+c: this engine runs the device role on CPU cores, there is no CUDA graph to capture"
    if engine.fused and shape.expert_biases:
        yield f"the fused kernel has no biases and no clamped SwiGLU, which the experts of {name} need"
    if engine.fused and activation != "silu":
        yield f"the fused kernel computes SwiGLU, {name} activates by {activation}"
    if spec.workload.phase != "decode" and (engine.deferral or engine.skipping):
        yield "Expert Deferral and Expert Skipping act in decode only"
    if spec.workload.phase == "layer":
        yield from _layer_reasons(spec)
    elif spec.precision != "bf16" and not engine.fused:
        yield f"base runs bf16 weights, as checkpoints hold them: precision={spec.precision} needs +v or +m"
    if engine.deferral and shape.moe_layers < 2:
        yield f"Expert Deferral needs a later MoE layer, {name} as asked for has {shape.moe_layers}"
    if engine.n and engine.threads is not None and engine.threads < (engine.domains or 1):
        yield f"+n: engine.domains={engine.domains} need a thread each, there are engine.threads={engine.threads}"


def _layer_reasons(spec: RunSpec) -> Iterator[str]:
    work, model = spec.workload, spec.model
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
