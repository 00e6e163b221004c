"""A described machine for tests, much like the paper's, and cells of a small model on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ktbench.sim.advising.catalogue import Box, catalogue, read_box
from ktbench.spec.engine import EngineSpec
from ktbench.spec.machine import BY_NAME, MachineSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.tiny import CONFIG

HOST: dict[str, Any] = {
    "domains": 2, "cores": 36, "memory_gib": 256.0, "read_gb_per_s": 220.0, "remote_gb_per_s": 125.0,
    "vector": "avx512", "vector_tflops": 7.0, "vector_int8_tops": 14.0, "amx_tflops": 60.0, "amx_int8_tops": 120.0,
}  # fmt: skip
DEVICE: dict[str, Any] = {
    "gpu": "RTX 4080", "gpus": 1, "gpu_memory_gib": 16.0, "gpu_gb_per_s": 717.0, "gpu_tflops": 97.0, "gpu_ghz": 2.5,
    "link_gb_per_s": 25.0,
}  # fmt: skip
_WIDE = {
    "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 64, "num_experts_per_tok": 8, "head_dim": 128,
    "num_attention_heads": 16, "num_hidden_layers": 4, "vocab_size": 32000,
}  # fmt: skip


def testbed(**changes: Any) -> MachineSpec:
    """The machine with other values; `gpu=None` takes the device away."""
    values = HOST | (DEVICE if changes.get("gpu", "") is not None else {}) | changes
    sources = {name: "made up for a test" for name, value in values.items() if name in BY_NAME and value is not None}
    return MachineSpec(name="testbed", title="A machine for tests", sources=sources, **values)


testbed.__test__ = False  # type: ignore[attr-defined]  # its name begins as those of tests do


def cell_on(machine: MachineSpec, *, phase: str = "decode", prompt: int = 64, **engine: Any) -> RunSpec:
    """A cell of four layers of Qwen3-30B-A3B's width with 64 experts."""
    spec = RunSpec(
        model=ModelSpec(name="wide", config=CONFIG | _WIDE, full_layers=4, full_vocab=32000),
        workload=WorkloadSpec(phase=phase, prompt=prompt, steps=1 if phase == "prefill" else 8),  # type: ignore[arg-type]
        engine=EngineSpec(**({"avx512": True, "dynamic": True} | engine)),
    )
    return replace(spec, machine=machine)


def box_of(cpu: str, gpu: str | None = None, sockets: int = 1) -> Box:
    """A processor with a module of 64 GB in every channel, as fast as it allows."""
    row = catalogue().cpus[cpu]
    kind, mts = next(iter(row.memory.items()))
    return read_box(cpu, sockets, f"{sockets * row.channels}x64 {kind}-{mts}", gpu)
