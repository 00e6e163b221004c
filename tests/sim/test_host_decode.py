"""Routed experts of a few tokens: bytes over bandwidth, what a call costs, and where a feature helps."""

from __future__ import annotations

import numpy as np
import pytest

from ktbench.sim.placement import Coverage
from tests.sim.hosts import ALL, ARMS, COST, EXPERT, FAR, IDEAL, NEAR, base, cell, decode, prefill

BOUND = {"avx512": True, "dynamic": True, "numa": True}


@pytest.mark.parametrize(("precision", "bytes_"), [("bf16", 2.0), ("int8", 1.0), ("int4_g128", 0.5)])
@pytest.mark.parametrize("domains", [1, 2, 4])
def test_decode_takes_the_time_of_its_bytes_from_all_domains(precision: str, bytes_: float, domains: int) -> None:
    spec = cell(BOUND, precision=precision, domains=domains)
    assert decode(spec).seconds(ALL) == pytest.approx(8 * bytes_ * EXPERT / (domains * NEAR), rel=0.003)


def test_decode_reaches_its_share_of_the_bandwidth_and_pays_for_the_call() -> None:
    cost = IDEAL.changed({"decode_stream": 0.5, "call_ms": 0.2})
    assert decode(cell(BOUND), cost).seconds(ALL) == pytest.approx(2 * 8 * 2 * EXPERT / (2 * NEAR) + 0.2e-3)


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
