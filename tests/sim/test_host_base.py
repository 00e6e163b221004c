"""Experts one after the other through PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.sim.hosts import ALL, COST, EXPERT, IDEAL, NEAR, OFF, base, cell, decode
from tests.sim.real import real_cell, real_machine


def test_base_reads_experts_one_after_the_other_from_one_domain() -> None:
    host = base(cell({}, domains=2, amx_tflops=1e9, amx_int8_tops=1e9))
    assert host.seconds(ALL) == pytest.approx(8 * 2 * EXPERT / NEAR, rel=1e-3)


def test_base_pays_for_every_expert_and_in_prefill_for_its_rows() -> None:
    cost = IDEAL.changed({"base_expert_ms": 0.25, "base_new_ms": 0.1, "base_moved_ms_per_mb": 0.5})
    loads = np.array([100, 300])
    free = base(cell({})).seconds(loads)
    assert base(cell({}), cost).seconds(loads) == pytest.approx(free + 2 * 0.25e-3)
    moved_mb = 400 * 7168 * 2 * 1e-6
    wanted = free + 2 * 0.35e-3 + moved_mb * 0.5e-3
    assert base(cell({}), cost, prefill=True).seconds(loads) == pytest.approx(wanted)


@pytest.mark.parametrize(("amx", "peak"), [(73.7, 73.7e12), (None, 9.22e12)])
def test_base_multiplies_on_amx_where_there_is_any(amx: float | None, peak: float) -> None:
    host = base(cell({}, amx_tflops=amx, amx_int8_tops=amx, read_gb_per_s=1e9))
    assert host.seconds(np.array([1000])) == pytest.approx(1000 * 2 * EXPERT / peak, rel=1e-3)


@pytest.mark.parametrize("preset", ["paper_a100", "paper_4080", "core_14900kf_4090", "xeon6_mrdimm_4090d"])
@pytest.mark.parametrize("model", ["deepseek_v3", "deepseek_v2", "qwen2_57b_a14b"])
def test_base_is_slower_than_the_fused_kernel_in_decode(preset: str, model: str) -> None:
    machine = real_machine(preset)
    spec = real_cell(model, machine=machine, **(OFF | {"avx512": True}))
    ones = np.ones(spec.model.shape.top_k, dtype=np.int64)
    slow = replace(spec, engine=replace(spec.engine, avx512=False))
    assert base(slow, COST).seconds(ones) > decode(spec, COST).seconds(ones)
