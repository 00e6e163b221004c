"""Steps on machines without limits, and what holds on any machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.sim.graph import execute
from ktbench.sim.simulation import step_graph
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.sim.real import real_cell, real_machine
from tests.sim.step_cells import (
    EXPERT,
    FREE,
    OFF,
    QWEN2,
    QWEN3,
    V2,
    V3,
    host_s,
    replace_engine,
    step_s,
)


@pytest.mark.parametrize("deferral", [0, 3])
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4_g128"])
def test_with_an_infinite_device_decode_is_the_hosts_reading(precision: str, deferral: int) -> None:
    quick = real_machine(gpu_gb_per_s=1e12, gpu_tflops=1e12, gpu_ghz=1e12)
    spec = real_cell("deepseek_v3", machine=quick, precision=precision, deferral=deferral)
    bytes_ = 58 * 8 * EXPERT * {"bf16": 2.0, "int8": 1.0, "int4_g128": 0.5}[precision]
    assert step_s(spec, FREE.changed({"decode_stream": 1.0})) == pytest.approx(bytes_ / 440e9, rel=0.003)


def test_with_an_infinite_host_decode_is_the_devices_reading() -> None:
    quick = real_machine(read_gb_per_s=1e12, remote_gb_per_s=1e12)
    spec = real_cell("deepseek_v3", machine=quick)
    params = 17.1e9 - 2 * 129280 * 7168  # all but embedding and head, which is read as well
    found = step_s(spec, FREE.changed({"gpu_stream": 1.0}))
    # The shared expert runs beside the experts, and still on the device.
    assert found == pytest.approx(2 * (params + 129280 * 7168) / 1555e9, rel=0.01)


def test_with_an_infinite_device_and_link_prefill_is_the_hosts_calls() -> None:
    quick = real_machine(gpu_gb_per_s=1e12, gpu_tflops=1e12, gpu_ghz=1e12, link_gb_per_s=1e12)
    spec = real_cell(V3, machine=quick, phase="prefill")
    graph = step_graph(spec, FREE.changed({"pageable_gb_per_s": 1e12}))
    assert execute(graph.tasks).total_s == pytest.approx(host_s(graph), rel=1e-6)


MACHINES = st.fixed_dictionaries(
    {"domains": st.sampled_from([1, 2]), "cores": st.integers(4, 64), "read_gb_per_s": st.floats(50, 400),
     "remote_gb_per_s": st.floats(5, 50), "vector_tflops": st.floats(5, 30), "vector_int8_tops": st.floats(60, 90),
     "amx_tflops": st.floats(20, 100), "amx_int8_tops": st.floats(200, 600), "gpu_gb_per_s": st.floats(200, 4000),
     "gpu_tflops": st.floats(50, 1000), "gpu_ghz": st.floats(1, 3), "link_gb_per_s": st.floats(2, 100)}
)  # fmt: skip
GRANTS = st.sampled_from(
    [OFF, OFF | {"avx512": True}, OFF | {"amx": True}]
    + [OFF | isa | {"dynamic": True} | more for isa in ({"avx512": True}, {"amx": True}, {"avx512": True, "amx": True})
       for more in ({}, {"numa": True}, {"numa": True, "cuda_graph": True})]
)  # fmt: skip
SCALED = ("read_gb_per_s", "remote_gb_per_s", "vector_tflops", "vector_int8_tops", "amx_tflops", "amx_int8_tops",
          "gpu_gb_per_s", "gpu_tflops", "gpu_ghz", "link_gb_per_s")  # fmt: skip


@st.composite
def cells(draw: st.DrawFn, precisions: tuple[str, ...] = ("bf16", "int8", "int4_g128")) -> RunSpec:
    phase = draw(st.sampled_from(["decode", "prefill"]))
    arm = draw(GRANTS)
    work = {"prompt": draw(st.sampled_from([1, 33, 700])), "steps": 1, "batch": draw(st.sampled_from([1, 1, 3]))}
    return real_cell(
        draw(st.sampled_from([V3, V2, QWEN2, QWEN3])),
        machine=real_machine(draw(st.sampled_from(["paper_a100", "paper_4080"])), **draw(MACHINES)),
        phase=phase,
        work=work,
        precision=draw(st.sampled_from(precisions)) if arm["avx512"] or arm["amx"] else "bf16",
        deferral=draw(st.integers(0, 6)) if phase == "decode" and (arm["avx512"] or arm["amx"]) else 0,
        **arm,
    )


@settings(deadline=None, max_examples=60)
@given(cells(), st.sampled_from(SCALED), st.floats(1, 4))
def test_more_of_a_machine_is_never_slower(spec: RunSpec, name: str, factor: float) -> None:
    assert spec.machine is not None
    more = replace(spec.machine, **{name: getattr(spec.machine, name) * factor})
    assert step_s(replace(spec, machine=more)) <= step_s(spec) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(cells(precisions=("bf16",)))
def test_fewer_bits_are_never_slower(spec: RunSpec) -> None:
    if not spec.engine.fused:
        return
    bf16, int8, int4 = (
        step_s(replace(spec, precision=precision, device_precision=precision))
        for precision in ("bf16", "int8", "int4_g128")
    )
    assert int4 <= int8 * (1 + 1e-9)
    assert int8 <= bf16 * (1 + 1e-9)
    assert int4 < bf16


@settings(deadline=None, max_examples=40)
@given(cells())
def test_threads_bound_and_graphs_are_never_slower(spec: RunSpec) -> None:
    if not spec.engine.fused:
        return
    assert step_s(replace_engine(spec, numa=True)) <= step_s(replace_engine(spec, numa=False)) * (1 + 1e-12)
    assert step_s(replace_engine(spec, cuda_graph=True)) <= step_s(replace_engine(spec, cuda_graph=False)) * (1 + 1e-12)


@pytest.mark.parametrize("preset", ["paper_a100", "paper_4080", "xeon_6454s_4090d", "xeon6_mrdimm_4090d"])
@pytest.mark.parametrize("model", [V3, V2, QWEN2, QWEN3])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_rung_of_the_breakdown_is_faster_than_base(preset: str, model: ModelSpec, phase: str) -> None:
    machine = real_machine(preset)
    rungs = [
        OFF | {"avx512": True},
        OFF | {"avx512": True, "dynamic": True},
        OFF | {"avx512": True, "dynamic": True, "numa": True},
    ]
    base_s = step_s(real_cell(model, machine=machine, phase=phase, **OFF))
    if phase == "decode":
        assert all(step_s(real_cell(model, machine=machine, **rung)) < base_s for rung in rungs)
    full = (
        {"amx": True, "dynamic": True, "numa": True}
        if phase == "prefill"
        else {"avx512": True, "dynamic": True, "numa": True, "cuda_graph": True}
    )
    assert step_s(real_cell(model, machine=machine, phase=phase, **(OFF | full))) < base_s
