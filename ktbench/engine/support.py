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
    if engine.n:
        yield "+n: this engine keeps all experts in one domain, NUMA-aware tensor parallelism is not built yet"
    if engine.c:
        yield "+c: this engine runs the device role on CPU cores, there is no CUDA graph to capture"
    if engine.fused and shape.expert_biases:
        yield f"the fused kernel has no biases and no clamped SwiGLU, which the experts of {name} need"
    if engine.fused and activation != "silu":
        yield f"the fused kernel computes SwiGLU, {name} activates by {activation}"
    if spec.workload.phase == "prefill" and (engine.deferral or engine.skipping):
        yield "Expert Deferral and Expert Skipping act in decode only"
    if engine.deferral and shape.moe_layers < 2:
        yield f"Expert Deferral needs a later MoE layer, {name} as asked for has {shape.moe_layers}"
