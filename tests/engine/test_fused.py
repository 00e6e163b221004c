"""The fused path: every family that can be packed, every kernel that this machine grants."""

from __future__ import annotations

import pytest
import torch

from ktbench.engine.weight_plan import Packing
from tests.engine.engines import FUSED, VECTOR, granted, needs_vector, relative
from tests.engine.tiny import PACKABLE, decode, load, prefill, run, spec, tiny_model

# bf16 rounds at 2^-9; base rounds after each of some ten operations, the fused kernel once.
_LOGITS_TOLERANCE = 0.02


AVX512, AMX = granted("avx512"), granted("amx")


@needs_vector()
@pytest.mark.parametrize("name", PACKABLE)
def test_fused_logits_agree_with_base(name: str) -> None:
    model = tiny_model(name)
    base, fused = load(model), load(model, keep_original=False, packing=Packing())
    for workload in (decode(batch=3), prefill(batch=2)):
        base.configure(spec(model, workload))
        fused.configure(spec(model, workload, **FUSED))
        assert relative(run(fused, workload.steps), run(base, workload.steps)) < _LOGITS_TOLERANCE


@AVX512
@AMX
def test_each_setting_moves_its_own_counters_only() -> None:
    model = tiny_model()
    system = load(model, packing=Packing())
    proof = {"avx512": "avx512_calls", "amx": "amx_tiles", "dynamic": "tasks_dynamic"}
    settings: list[dict[str, bool]] = [
        {},
        {"avx512": True},
        {"amx": True},
        {"avx512": True, "dynamic": True},
        {"amx": True, "dynamic": True},
    ]
    for workload in (decode(), prefill()):
        for features in settings:
            system.configure(spec(model, workload, **features))
            before = dict(system.counters())
            run(system, workload.steps)
            after = system.counters()
            moved = {name for name, counter in proof.items() if after[counter] > before[counter]}
            assert moved == set(features)
            assert after["deferred_experts"] == after["skipped_experts"] == 0


@AVX512
@AMX
def test_hybrid_splits_by_tokens_per_expert() -> None:
    """13 tokens on 8 experts at top-4 in any routing give some expert at least 5; decode never does."""
    model = tiny_model()
    system = load(model, keep_original=False, packing=Packing())
    for workload, amx in ((decode(), False), (prefill(), True)):
        system.configure(spec(model, workload, avx512=True, amx=True))
        before = system.counters()["amx_tiles"]
        run(system, workload.steps)
        assert (system.counters()["amx_tiles"] > before) == amx


@needs_vector()
def test_thread_count_changes_nothing_but_the_threads() -> None:
    model, workload = tiny_model(), decode(batch=2)
    system = load(model, keep_original=False, packing=Packing())
    system.configure(spec(model, workload, threads=1, **FUSED))
    one = run(system, workload.steps)
    counted = system.counters()[VECTOR.counter]
    system.configure(spec(model, workload, threads=None, **FUSED))
    assert all(map(torch.equal, one, run(system, workload.steps)))
    assert system.counters()[VECTOR.counter] > counted


@needs_vector()
def test_fused_alone_lets_the_original_weights_go() -> None:
    model = tiny_model()
    system = load(model, keep_original=False, packing=Packing())
    with pytest.raises(ValueError, match="original expert weights were not kept"):
        system.configure(spec(model, decode()))
