"""Expert Deferral and Skipping: counts, `deferral=auto`, prefill on request. For decode see `families`."""

from __future__ import annotations

import pytest
import torch

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.protocol import Unsupported
from ktbench.spec.engine import choose_deferral, deferral_candidates
from tests.engine.engines import (
    CPUS,
    FUSED,
    PACKED_DENSE,
    TOLERANCE,
    TWO_CORES,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    relative,
    split_cell,
)
from tests.engine.families.plain import Late, build
from tests.engine.tiny import decode, load, prefill, run, spec, tiny_model

MODEL = changed("qwen3_moe", num_experts_per_tok=4)


@TWO_CORES
@needs_vector()
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
@needs_vector()
def test_what_the_engine_measured_is_noted_until_it_is_configured_anew() -> None:
    system = engine_for(split_cell(MODEL, decode()), cpus=CPUS)
    logits(system, split_cell(MODEL, decode(batch=2, steps=5), deferral="auto"))
    note, state = system.notes()[0], system._components.state
    assert note.startswith(f"deferral=auto chose {state.engine.deferral}: host role busy ")
    assert note.count("%") == 3
    assert state.engine.deferral in deferral_candidates(MODEL.shape.top_k)
    system.configure(split_cell(MODEL, decode(), deferral=1))
    assert system.notes() == ()


@TWO_CORES
@needs_vector()
def test_auto_acts_in_decode_only() -> None:
    system = engine_for(split_cell(MODEL, decode()), cpus=CPUS)
    with pytest.raises(Unsupported, match="decode only"):
        system.configure(split_cell(MODEL, prefill(), deferral="auto"))


TOP_K = 4


@pytest.fixture(params=["original", pytest.param("fused", marks=needs_vector())])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_counts_are_of_decode_steps_alone() -> None:
    """Two MoE layers, the last of which defers nothing, and three steps of two sequences; the prompt counts nothing."""
    model, workload = tiny_model(), decode(batch=2)
    system = load(model)
    expected = {"deferred_experts": 0, "skipped_experts": 0}
    for n in range(TOP_K + 1):
        for feature, counter, layers in (("deferral", "deferred_experts", 1), ("skipping", "skipped_experts", 2)):
            system.configure(spec(model, workload, **{feature: n}))
            run(system, workload.steps)
            expected[counter] += layers * 3 * 2 * n
            assert system.counters() == expected
            assert system._components.state.pending is None


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])  # the second has a dense layer first
def test_prefill_on_request_follows_the_formula(name: str, backend: str) -> None:
    kernels = FUSED if backend == "fused" else {}
    model, workload = changed(name, num_experts_per_tok=TOP_K), prefill(batch=2)
    system = engine_for(cell(model, workload, **kernels))
    plain = logits(system, cell(model, workload, **kernels))
    for n in range(TOP_K + 1):
        seen = logits(system, cell(model, workload, **kernels, deferral=n, defer_prefill=True))
        assert relative(seen, Late(build(model), n).logits(workload)) < TOLERANCE
        assert all(map(torch.equal, seen, plain)) == (n == 0)


def test_deferral_needs_a_later_layer() -> None:
    model = tiny_model(num_hidden_layers=1)
    with pytest.raises(Unsupported, match=r"engine\.deferral=1: .*2 MoE layers"):
        load(model).configure(spec(model, decode(), deferral=1))
