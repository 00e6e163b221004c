"""Routed experts of many tokens: products, thresholds, and the phases around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ktbench.sim.calibration import Calibration
from tests.sim.hosts import ARMS, COST, EXPERT, IDEAL, NEAR, cell, prefill


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
