"""What the engine cannot run, told from the spec alone: before anything heavy is imported or loaded."""

from __future__ import annotations

from ktbench.core.spec import RunSpec


def unsupported(spec: RunSpec) -> str:
    """Why this engine cannot run the cell, on whatever machine; empty where it can."""
    engine, shape = spec.engine, spec.model.shape
    if engine.n:
        return "+n: this engine keeps all experts in one domain, NUMA-aware tensor parallelism is not built yet"
    if engine.c:
        return "+c: this engine runs the device role on the CPU, there is no CUDA graph to capture"
    if (engine.v or engine.m) and shape.expert_biases:
        return f"the fused kernel has no biases and no clamped SwiGLU, which the experts of {spec.model.name} need"
    if (engine.v or engine.m) and spec.model.config.get("hidden_act", "silu") != "silu":
        return f"the fused kernel computes SwiGLU, {spec.model.name} activates by {spec.model.config['hidden_act']}"
    if spec.workload.phase == "prefill" and (engine.deferral or engine.skipping):
        return "Expert Deferral and Expert Skipping act in decode only"
    if engine.deferral and shape.moe_layers < 2:
        return f"Expert Deferral needs a later MoE layer, {spec.model.name} as asked for has {shape.moe_layers}"
    return ""
