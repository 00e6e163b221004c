"""Routed experts of DeepSeek-V3 on hosts, and kernels that lose nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.host_kernels import DecodeExperts, PrefillExperts, TorchExperts
from ktbench.sim.sizes import sizes_of
from ktbench.spec.run_spec import RunSpec
from tests.sim.real import real_cell, real_machine

COST = read_calibration("ktransformers")
# Kernels at every limit, reading and arithmetic wholly overlapped, calls and bytes around the products free.
IDEAL = COST.changed(
    {name: 0.0 for name, one in COST.constants.items() if one.unit.startswith(("ms", "us", "ns"))}
    | {name: 1.0 for name, one in COST.constants.items() if one.unit.startswith("of ")}
    | {"prefill_stream": 1.0, "vector_serial": 0.0, "amx_overlap": 40.0, "move": 1e9, "thread_gb_per_s": 1e9}
)
EXPERT = 3 * 7168 * 2048  # weights
ALL = np.ones(8, dtype=np.int64)
NEAR, FAR = 220e9, 125e9
OFF: dict[str, Any] = {"avx512": False, "amx": False, "dynamic": False, "numa": False, "cuda_graph": False}
ARMS: tuple[dict[str, bool], ...] = ({"avx512": True}, {"amx": True}, {"avx512": True, "amx": True})


def cell(arm: dict[str, Any], *, phase: str = "decode", precision: str = "bf16", **machine: Any) -> RunSpec:
    return real_cell("deepseek_v3", phase=phase, precision=precision, machine=real_machine(**machine), **(OFF | arm))


def decode(spec: RunSpec, cost: Calibration = IDEAL) -> DecodeExperts:
    assert spec.machine is not None
    return DecodeExperts(spec=spec, machine=spec.machine, cost=cost, sizes=sizes_of(spec))


def prefill(spec: RunSpec, cost: Calibration = IDEAL) -> PrefillExperts:
    assert spec.machine is not None
    return PrefillExperts(spec=spec, machine=spec.machine, cost=cost, sizes=sizes_of(spec))


def base(spec: RunSpec, cost: Calibration = IDEAL, *, prefill: bool = False) -> TorchExperts:
    assert spec.machine is not None
    work = replace(spec.workload, phase="prefill" if prefill else "decode", steps=1)
    return TorchExperts(spec=replace(spec, workload=work), machine=spec.machine, cost=cost, sizes=sizes_of(spec))
