"""Routed experts of KTransformers on a host: closed forms, roofs, and what more of a machine may do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from ktbench.sim.host_kernels import DecodeExperts, PrefillExperts, TorchExperts
from ktbench.sim.routing import Coverage
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import Sizes, sizes_of
from tests.sim.real import real_cell, real_machine
from tests.sim.step_cells import COST, EXPERT, OFF

# Kernels at every limit, reading and arithmetic wholly overlapped, calls and bytes around the products free.
IDEAL = COST.changed(
    {name: 0.0 for name, one in COST.constants.items() if one.unit.startswith(("ms", "us", "ns"))}
    | {name: 1.0 for name, one in COST.constants.items() if one.unit.startswith("of ")}
    | {"prefill_stream": 1.0, "vector_serial": 0.0, "amx_overlap": 40.0, "move": 1e9, "thread_gb_per_s": 1e9}
)
ALL = np.ones(8, dtype=np.int64)
NEAR, FAR = 220e9, 125e9
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


LOADS = st.lists(st.integers(0, 600), min_size=1, max_size=12).map(lambda rows: np.array(rows, dtype=np.int64))
MACHINES = st.fixed_dictionaries(
    {"domains": st.sampled_from([1, 2, 4]), "cores": st.integers(1, 64), "read_gb_per_s": st.floats(50, 400),
     "remote_gb_per_s": st.floats(5, 50), "vector_tflops": st.floats(5, 30), "vector_int8_tops": st.floats(35, 90),
     "amx_tflops": st.floats(3, 300), "amx_int8_tops": st.floats(3, 600)}
)  # fmt: skip
GRANTS = st.sampled_from(
    [arm | {"dynamic": d, "numa": n} for arm in ARMS for d in (False, True) for n in (False, True)]
)
PRECISIONS = st.sampled_from(["bf16", "int8", "int4_g128"])


def times_s(spec: RunSpec, loads: NDArray[np.int64]) -> tuple[float, ...]:
    fused = decode(spec, COST).seconds((loads > 0).astype(np.int64)), prefill(spec, COST).seconds(loads)
    return (*fused, *(base(spec, COST, prefill=phase).seconds(loads) for phase in (False, True)))


@settings(deadline=None)
@given(
    MACHINES, GRANTS, PRECISIONS, LOADS, st.floats(1, 5),
    st.sampled_from(["read_gb_per_s", "remote_gb_per_s", "vector_tflops", "vector_int8_tops", "amx_tflops",
                     "amx_int8_tops"]),
)  # fmt: skip
def test_a_faster_machine_is_never_slower(
    machine: dict[str, Any], arm: dict[str, bool], precision: str, loads: NDArray[np.int64], factor: float, name: str
) -> None:
    before = times_s(cell(arm, precision=precision, **machine), loads)
    after = times_s(cell(arm, precision=precision, **(machine | {name: machine[name] * factor})), loads)
    assert all(now <= was * (1 + 1e-9) for was, now in zip(before, after, strict=True))


@settings(deadline=None)
@given(MACHINES, GRANTS, PRECISIONS, LOADS)
def test_unbound_threads_are_never_faster(
    machine: dict[str, Any], arm: dict[str, bool], precision: str, loads: NDArray[np.int64]
) -> None:
    bound, apart = (times_s(cell(arm | {"numa": n}, precision=precision, **machine), loads) for n in (True, False))
    assert all(one <= other * (1 + 1e-12) for one, other in zip(bound, apart, strict=True))


@settings(deadline=None)
@given(MACHINES, GRANTS, LOADS)
def test_no_call_beats_its_roofs(machine: dict[str, Any], arm: dict[str, bool], loads: NDArray[np.int64]) -> None:
    spec = cell(arm, **machine)
    active, sizes = loads[loads > 0], sizes_of(spec)
    read_s, peak = roofs(sizes, machine, len(active))
    compute_s = active.sum() * sizes.expert_flops / peak
    decode_s, prefill_s, base_s, base_prefill_s = times_s(spec, loads)
    assert min(decode_s, base_s, base_prefill_s) >= read_s
    assert min(prefill_s, base_prefill_s) >= max(read_s, compute_s)


def roofs(sizes: Sizes, machine: dict[str, Any], experts: int) -> tuple[float, float]:
    """Seconds of reading so many experts from all domains, and the peak of them all."""
    read_s = experts * sizes.expert_bytes / (machine["domains"] * machine["read_gb_per_s"] * 1e9)
    peak = machine["domains"] * max(machine["amx_tflops"], machine["vector_tflops"]) * 1e12
    return read_s, peak


def test_more_bandwidth_never_slows_a_batch_in_decode() -> None:
    """Threads that are not bound gain little where the products of one token gain much."""
    machine: dict[str, Any] = {"remote_gb_per_s": 5.0, "amx_tflops": 3.0, "amx_int8_tops": 3.0}
    slow, fast = (cell({"avx512": True, "amx": True}, read_gb_per_s=near, **machine) for near in (50.0, 200.0))
    assert decode(fast, COST).seconds(np.array([161])) <= decode(slow, COST).seconds(np.array([161]))


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


BOUND = {"avx512": True, "dynamic": True, "numa": True}


@pytest.mark.parametrize(("precision", "bytes_"), [("bf16", 2.0), ("int8", 1.0), ("int4_g128", 0.5)])
@pytest.mark.parametrize("domains", [1, 2, 4])
def test_decode_takes_the_time_of_its_bytes_from_all_domains(precision: str, bytes_: float, domains: int) -> None:
    spec = cell(BOUND, precision=precision, domains=domains)
    assert decode(spec).seconds(ALL) == pytest.approx(8 * bytes_ * EXPERT / (domains * NEAR), rel=0.003)


def test_decode_reaches_its_share_of_the_bandwidth_and_pays_for_the_call() -> None:
    cost = IDEAL.changed({"decode_stream": 0.5, "call_ms": 0.2})
    assert decode(cell(BOUND), cost).seconds(ALL) == pytest.approx(2 * 8 * 2 * EXPERT / (2 * NEAR) + 0.2e-3)


@pytest.mark.parametrize(("batch", "calls", "reads"), [(1, 1, 8), (4, 4, 32), (9, 9, 72), (10, 1, 8), (40, 1, 8)])
def test_so_few_tokens_are_calls_of_their_own_that_read_all_they_select(batch: int, calls: int, reads: int) -> None:
    """All tokens select the same eight experts, whose arithmetic takes no time."""
    spec = cell(BOUND, vector_tflops=1e9)
    spec = replace(spec, workload=replace(spec.workload, batch=batch))
    cost = IDEAL.changed({"call_ms": 0.1, "alone_below": 10})
    wanted = reads * 2 * EXPERT / (2 * NEAR) + calls * 0.1e-3
    assert decode(spec, cost).seconds(batch * ALL) == pytest.approx(wanted, rel=1e-6)
    together = decode(spec, cost.changed({"alone_below": 0})).seconds(batch * ALL)
    assert together == pytest.approx(8 * 2 * EXPERT / (2 * NEAR) + 0.1e-3, rel=1e-6)


def test_a_call_without_tokens_takes_no_time() -> None:
    none = np.zeros(256, dtype=np.int64)
    assert decode(cell(BOUND), COST).seconds(none) == 0.0
    assert base(cell({}), COST).seconds(none) == 0.0
    assert prefill(cell({"amx": True}, phase="prefill"), COST).seconds(none) == 0.0


def test_unbound_threads_read_at_the_harmonic_mean_and_pay_more_for_the_call() -> None:
    cost = IDEAL.changed({"call_ms": 0.1, "apart_ms": 0.4})
    apart = decode(cell({"avx512": True, "dynamic": True}), cost).seconds(ALL)
    each = 2 / (1 / NEAR + 1 / FAR)
    assert apart == pytest.approx(8 * 2 * EXPERT / (2 * each) + 0.5e-3)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_bound_threads_change_nothing_in_one_domain(phase: str) -> None:
    bound, apart = (cell({"avx512": True, "dynamic": True, "numa": n}, phase=phase, domains=1) for n in (True, False))
    assert decode(bound, COST).seconds(ALL) == decode(apart, COST).seconds(ALL)
    loads = np.full(256, 9)
    assert prefill(bound, COST).seconds(loads) == prefill(apart, COST).seconds(loads)


def test_amx_alone_is_slower_at_one_token_and_the_hybrid_is_not() -> None:
    vector, amx, hybrid = (decode(cell(BOUND | {"avx512": False} | arm), COST).seconds(ALL) for arm in ARMS)
    assert hybrid == vector
    call_s = COST["call_ms"] * 1e-3
    assert (amx - call_s) / (vector - call_s) == pytest.approx(COST["amx_one_token"])


def test_without_a_queue_decode_takes_its_constant_longer() -> None:
    static = decode(cell(BOUND | {"dynamic": False}), IDEAL.changed({"decode_static": 1.25})).seconds(ALL)
    assert static == pytest.approx(1.25 * decode(cell(BOUND)).seconds(ALL))


def test_what_the_device_serves_is_not_read() -> None:
    host, cost = decode(cell(BOUND), COST), COST
    whole_s, call_s = host.seconds(ALL), cost["call_ms"] * 1e-3
    assert host.seconds(ALL, Coverage(device=0.25, any_on_host=1.0)) == pytest.approx(
        0.75 * (whole_s - call_s) + call_s
    )
    assert host.seconds(ALL, Coverage(device=1.0, any_on_host=0.0)) == 0.0


@pytest.mark.parametrize("arm", ARMS)
def test_more_tokens_an_expert_take_longer_and_one_does_not(arm: dict[str, bool]) -> None:
    host = decode(cell(BOUND | {"avx512": False} | arm), COST)
    one, few, many = (host.seconds(np.full(8, rows)) for rows in (1, 16, 400))
    assert one <= few <= many
    assert many > 2 * one


def expert_s(arm: dict[str, Any], rows: float, cost: Calibration = IDEAL, **changes: Any) -> float:
    return float(prefill(cell(arm, phase="prefill", **changes), cost).times(np.array([rows])).expert_s[0])


@pytest.mark.parametrize("domains", [1, 2])
@pytest.mark.parametrize(("arm", "peak", "rows"), [({"avx512": True}, 9.22e12, 500), ({"amx": True}, 73.7e12, 3200)])
def test_large_products_take_the_time_of_their_arithmetic(
    arm: dict[str, bool], peak: float, rows: int, domains: int
) -> None:
    assert expert_s(arm, rows, domains=domains) == pytest.approx(rows * 2 * EXPERT / (domains * peak), rel=1e-3)


@pytest.mark.parametrize("domains", [1, 2])
@pytest.mark.parametrize("arm", ARMS)
def test_small_products_take_the_time_of_their_weights(arm: dict[str, bool], domains: int) -> None:
    assert expert_s(arm, 1, domains=domains) == pytest.approx(2 * EXPERT / (domains * NEAR), rel=1e-3)


def test_amx_takes_rows_32_at_a_time() -> None:
    slow: dict[str, Any] = {"amx_tflops": 1.0, "amx_int8_tops": 2.0}
    times_s = [expert_s({"amx": True}, rows, **slow) for rows in (1, 32, 33, 64, 65)]
    assert times_s[0] == times_s[1] < times_s[2] == times_s[3] < times_s[4]
    assert times_s[2] == pytest.approx(2 * times_s[1], rel=1e-3)
    assert expert_s({"avx512": True}, 33, **slow, vector_tflops=0.1) > expert_s(
        {"avx512": True}, 32, **slow, vector_tflops=0.1
    )


@pytest.mark.parametrize(("least", "rows"), [(5, range(1, 9)), (2, range(1, 5)), (9, range(6, 12))])
def test_the_hybrid_takes_amx_from_five_tokens_or_what_is_asked(least: int, rows: range) -> None:
    for count in rows:
        hybrid = expert_s({"avx512": True, "amx": True, "amx_min_tokens": least}, count, COST)
        assert hybrid == expert_s({"amx": True} if count >= least else {"avx512": True}, count, COST)


def test_reading_and_arithmetic_overlap_in_part_on_amx() -> None:
    """A norm of the two: 1 adds them, infinity is the larger."""
    slow: dict[str, Any] = {"amx_tflops": 2.0, "amx_int8_tops": 4.0}
    read, compute = 2 * EXPERT / (2 * NEAR), 32 * 2 * EXPERT / (2 * 2.0e12)
    for norm in (1.0, 1.5, 3.0):
        wanted = (read**norm + compute**norm) ** (1 / norm)
        assert expert_s({"amx": True}, 32, IDEAL.changed({"amx_overlap": norm}), **slow) == pytest.approx(wanted)


def test_vector_units_hide_arithmetic_behind_part_of_the_reading() -> None:
    cost = IDEAL.changed({"vector_serial": 0.6})
    read = 2 * EXPERT / (2 * NEAR)
    for rows in (1, 4, 20, 200):
        compute = rows * 2 * EXPERT / (2 * 9.22e12)
        assert expert_s({"avx512": True}, rows, cost) == pytest.approx(max(read, 0.6 * read + compute))


def test_two_domains_read_at_the_share_of_two() -> None:
    cost = IDEAL.changed({"amx_stream": 0.5, "amx_stream_one": 0.9})
    assert expert_s({"amx": True}, 1, cost, domains=1) == pytest.approx(2 * EXPERT / (0.9 * NEAR), rel=1e-3)
    assert expert_s({"amx": True}, 1, cost, domains=2) == pytest.approx(EXPERT / (0.5 * NEAR), rel=1e-3)


@pytest.mark.parametrize(
    ("arm", "domains"),
    [({"avx512": True}, 1), ({"avx512": True}, 2), ({"amx": True}, 1), ({"amx": True}, 2)],
)
def test_no_expert_is_read_faster_than_memory(arm: dict[str, bool], domains: int) -> None:
    quick: dict[str, Any] = {"amx_tflops": 1e12, "amx_int8_tops": 1e12, "vector_tflops": 1e12}
    assert expert_s(arm, 1, COST, domains=domains, **quick) >= 2 * EXPERT / (domains * NEAR)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("rows", [1, 4, 5, 32, 100, 4000])
def test_fewer_bits_are_never_slower(arm: dict[str, bool], rows: int) -> None:
    bf16, int8, int4 = (expert_s(arm, rows, COST, precision=precision) for precision in ("bf16", "int8", "int4_g128"))
    assert int4 <= int8 <= bf16
    assert int4 < bf16


def call_s(arm: dict[str, Any], loads: NDArray[np.int64], cost: Calibration = IDEAL, **machine: Any) -> float:
    return prefill(cell(arm, phase="prefill", **machine), cost).seconds(loads)


def test_with_a_queue_a_call_takes_what_its_experts_take() -> None:
    loads = np.random.default_rng(1).integers(0, 300, 256)
    host = prefill(cell({"amx": True, "dynamic": True, "numa": True}, phase="prefill", remote_gb_per_s=1e9))
    assert host.seconds(loads) == pytest.approx(host.times(loads[loads > 0].astype(float)).expert_s.sum(), rel=0.005)


@pytest.mark.parametrize("arm", ARMS)
def test_even_loads_lose_nothing_to_static_shares_and_one_hot_expert_does(arm: dict[str, bool]) -> None:
    even, hot = np.full(256, 320), np.full(256, 32)
    hot[7] = 288 * 256 + 32
    asked = arm | {"numa": True}
    assert call_s(asked, even) == pytest.approx(call_s(asked | {"dynamic": True}, even), rel=0.01)
    # Its 16 tasks of gate and up are of one or two threads of 36, where neighbours take their shares.
    assert call_s(asked, hot) > 10 * call_s(asked | {"dynamic": True}, hot)


def test_unbound_threads_take_their_constant_longer() -> None:
    loads, cost = np.full(256, 64), COST.changed({"apart": 1.5})
    bound, apart = (call_s({"amx": True, "dynamic": True, "numa": n}, loads, cost) for n in (True, False))
    assert apart == pytest.approx(1.5 * bound)


def test_phases_around_the_products_take_their_bytes() -> None:
    """Per token of hidden width, per selection twice (gathered, added up), and what a write to memory reads first."""
    loads, arm = np.full(256, 64), {"amx": True, "dynamic": True, "numa": True}
    picks, tokens, hidden, ffn = 256 * 64, 256 * 64 / 8, 7168, 2048 / 2
    moving = call_s(arm, loads, IDEAL.changed({"move": 1.0})) - call_s(arm, loads)
    gathered = tokens * hidden * 2 + picks * hidden * 2 * 2
    added = picks * hidden * 2 + tokens * hidden * 4 * 2
    merged = tokens * hidden * (4 + 2 * 2) / 2
    packed = picks * (hidden + ffn) * 2 * 3
    swiglu = picks * ffn * 2 * 3
    assert moving == pytest.approx((gathered + added + merged + packed + swiglu) / NEAR, rel=0.02)


def test_the_fullest_expert_is_packed_by_one_thread() -> None:
    loads = np.zeros(256, dtype=np.int64)
    loads[3] = 4096
    arm, moved = {"amx": True, "dynamic": True, "numa": True}, 4096 * (7168 + 1024) * 2 * 3
    slow = call_s(arm, loads, IDEAL.changed({"thread_gb_per_s": 5.0})) - call_s(arm, loads)
    assert slow == pytest.approx(moved / 5e9, rel=1e-3)


def test_selections_are_counted_by_one_thread() -> None:
    loads, arm = np.full(256, 64), {"amx": True, "dynamic": True, "numa": True}
    counted = call_s(arm, loads, IDEAL.changed({"select_ns": 4.0})) - call_s(arm, loads)
    assert counted == pytest.approx(256 * 64 * 4e-9)


def test_arithmetic_of_a_task_takes_one_core_its_time() -> None:
    """One expert has 16 tasks of gate and up in a domain, for 36 cores; of down there are more than cores."""
    loads = np.zeros(256, dtype=np.int64)
    loads[3] = 3200
    even = expert_s({"amx": True}, 3200)
    wanted = even * (2 / 3 * 36 / 16 + 1 / 3)
    assert call_s({"amx": True, "dynamic": True, "numa": True}, loads) == pytest.approx(wanted, rel=0.03)
