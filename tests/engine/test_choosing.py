"""What deferral=auto chooses, and what it says about it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.choosing import LEAST_ON_TIME, choose_deferral, told
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import Unsupported
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.engine.engines import cell, changed, engine_for, logits, needs_avx512
from tests.engine.tiny import decode, prefill

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
TWO_CORES = pytest.mark.skipif(len(CPUS) < 2, reason="roles apart need a core each, this process may use one")
MODEL = changed("qwen3_moe", num_experts_per_tok=4)
SHARES = st.lists(st.floats(0.01, 1), min_size=1, max_size=9)


@given(SHARES)
def test_the_smallest_number_that_keeps_the_host_as_busy_as_any(busy: list[float]) -> None:
    chosen = choose_deferral(busy)
    assert busy[chosen] >= 0.97 * max(busy)
    assert all(share < 0.97 * max(busy) for share in busy[:chosen])


@given(SHARES, st.floats(0.1, 1))
def test_only_how_they_compare_matters(busy: list[float], factor: float) -> None:
    halved = [share / 2 for share in busy]
    assert choose_deferral(halved) == choose_deferral(busy)
    assert choose_deferral([*busy, min(busy) * factor * 0.5]) == choose_deferral(busy)


@pytest.mark.parametrize(
    ("busy", "chosen"),
    [
        ([0.5], 0),
        ([0.5, 0.5, 0.5], 0),
        ([0.5, 0.7, 0.9, 0.9], 2),
        ([0.5, 0.88, 0.9], 1),
        ([0.9, 0.5], 0),
        ([0.0, 0.0], 0),
    ],
)
def test_choices_by_hand(busy: list[float], chosen: int) -> None:
    assert choose_deferral(busy) == chosen


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no busy shares"):
        choose_deferral([])


def test_the_choice_is_told_with_what_it_rests_on() -> None:
    assert told([0.5, 0.7, 0.9]) == "deferral=auto chose 2: host role busy 50%, 70%, 90% of the step at N = 0 to 2"


def asked(workload: WorkloadSpec, **engine: Any) -> RunSpec:
    return cell(MODEL, workload, threads=None, avx512=True, roles="split", **engine)


@TWO_CORES
@needs_avx512()
@pytest.mark.parametrize("lean", [False, True], ids=["+v", "+v+l"])
@pytest.mark.parametrize("busy", [[0.5, 0.9, 0.9], [0.9, 0.9, 0.9], [0.5, 0.7, 0.9]])
def test_the_engine_defers_what_was_chosen(busy: list[float], lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def share(_: HybridEngine, __: object, deferral: int) -> float:
        tried.append(deferral)
        return busy[deferral]

    monkeypatch.setattr(HybridEngine, "_busy_share", share)
    system, workload = engine_for(asked(decode(), packed_dense=lean), cpus=CPUS), decode(batch=2)
    seen = logits(system, asked(workload, packed_dense=lean, deferral="auto"))
    chosen = choose_deferral(busy)
    assert tried == list(range(MODEL.shape.top_k - LEAST_ON_TIME + 1))
    assert system.notes() == (told(busy),)
    for fixed in range(3):
        other = logits(system, asked(workload, packed_dense=lean, deferral=fixed))
        same = map(torch.equal, seen, other)
        assert all(same) == (fixed == chosen)


@TWO_CORES
@needs_avx512()
def test_what_the_engine_measured_is_told_until_it_is_configured_anew() -> None:
    system = engine_for(asked(decode()), cpus=CPUS)
    logits(system, asked(decode(batch=2, steps=5), deferral="auto"))
    note, state = system.notes()[0], system._parts.state
    assert note.startswith(f"deferral=auto chose {state.deferral}: host role busy ")
    assert note.count("%") == 3
    assert 0 <= state.deferral <= MODEL.shape.top_k - LEAST_ON_TIME
    system.configure(asked(decode(), deferral=1))
    assert system.notes() == ()


@needs_avx512()
def test_auto_needs_roles_apart() -> None:
    system = engine_for(cell(MODEL, decode(), avx512=True))
    with pytest.raises(Unsupported, match="deferral=auto watches the host role"):
        system.configure(cell(MODEL, decode(), avx512=True, deferral="auto"))


@TWO_CORES
@needs_avx512()
def test_auto_acts_in_decode_only() -> None:
    system = engine_for(asked(decode()), cpus=CPUS)
    with pytest.raises(Unsupported, match="decode only"):
        system.configure(asked(prefill(), deferral="auto"))
