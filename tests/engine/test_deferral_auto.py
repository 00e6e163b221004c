"""What the engine does with deferral=auto."""

from __future__ import annotations

import pytest
import torch

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import Unsupported
from ktbench.spec.engine import choose_deferral, deferral_candidates
from tests.engine.engines import (
    CPUS,
    PACKED_DENSE,
    TWO_CORES,
    cell,
    changed,
    engine_for,
    logits,
    needs_avx512,
    split_cell,
)
from tests.engine.tiny import decode, prefill

MODEL = changed("qwen3_moe", num_experts_per_tok=4)


@TWO_CORES
@needs_avx512()
@PACKED_DENSE
@pytest.mark.parametrize("busy", [[0.5, 0.9, 0.9], [0.9, 0.9, 0.9], [0.5, 0.7, 0.9]])
def test_the_engine_defers_what_was_chosen(busy: list[float], lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def share(_: HybridEngine, __: object, deferral: int) -> float:
        tried.append(deferral)
        return busy[deferral]

    monkeypatch.setattr(HybridEngine, "_busy_share", share)
    system, workload = engine_for(split_cell(MODEL, decode(), packed_dense=lean), cpus=CPUS), decode(batch=2)
    seen = logits(system, split_cell(MODEL, workload, packed_dense=lean, deferral="auto"))
    chosen = choose_deferral(busy)
    assert tried == list(deferral_candidates(MODEL.shape.top_k))
    (note,) = system.notes()
    assert f"chose {chosen}" in note
    assert all(f"{share:.0%}" in note for share in busy)
    for fixed in range(3):
        other = logits(system, split_cell(MODEL, workload, packed_dense=lean, deferral=fixed))
        same = map(torch.equal, seen, other)
        assert all(same) == (fixed == chosen)


@TWO_CORES
@needs_avx512()
def test_what_the_engine_measured_is_noted_until_it_is_configured_anew() -> None:
    system = engine_for(split_cell(MODEL, decode()), cpus=CPUS)
    logits(system, split_cell(MODEL, decode(batch=2, steps=5), deferral="auto"))
    note, state = system.notes()[0], system._components.state
    assert note.startswith(f"deferral=auto chose {state.deferral}: host role busy ")
    assert note.count("%") == 3
    assert state.deferral in deferral_candidates(MODEL.shape.top_k)
    system.configure(split_cell(MODEL, decode(), deferral=1))
    assert system.notes() == ()


@needs_avx512()
def test_auto_needs_concurrent_roles() -> None:
    system = engine_for(cell(MODEL, decode(), avx512=True))
    with pytest.raises(Unsupported, match=r"engine\.deferral=auto: needs engine\.roles=split"):
        system.configure(cell(MODEL, decode(), avx512=True, deferral="auto"))


@TWO_CORES
@needs_avx512()
def test_auto_acts_in_decode_only() -> None:
    system = engine_for(split_cell(MODEL, decode()), cpus=CPUS)
    with pytest.raises(Unsupported, match="decode only"):
        system.configure(split_cell(MODEL, prefill(), deferral="auto"))
