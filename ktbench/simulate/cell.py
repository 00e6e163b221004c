"""One cell, simulated."""

from __future__ import annotations

from ktbench.core.record import RoofSample, Work
from ktbench.core.spec import RunSpec
from ktbench.core.timeline import Span, Timeline
from ktbench.simulate.simulation import Simulation


def simulate(spec: RunSpec) -> Simulation:
    """One step of a cell on its machine. Raises ValueError for a cell without one."""
    machine = spec.machine
    if machine is None:
        raise ValueError("machine: names no machine to simulate on")
    shape = spec.model.shape
    weight_bytes = shape.moe_layers * shape.top_k * shape.expert_params * 2
    step_s = weight_bytes / (machine.domains * machine.read_gb_per_s * 1e9)
    span = Span(resource="host", name="experts", kind="experts", begin_s=0.0, end_s=step_s)
    return Simulation(
        step_s=step_s,
        timeline=Timeline(title=spec.summary, spans=(span,), step_s=step_s, provenance="simulated"),
        work=Work(weight_bytes=weight_bytes, flops=weight_bytes, tokens=spec.workload.tokens_per_step),
        counters={},
        roof=RoofSample(
            read_bytes_per_s=machine.domains * machine.read_gb_per_s * 1e9,
            peak_flops=machine.domains * machine.vector_tflops * 1e12,
            peak_isa="avx512",
        ),
        shares={"host": 1.0},
        bottleneck="machine.read_gb_per_s",
    )
