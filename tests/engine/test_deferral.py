"""Expert Deferral and Skipping: their counts, and prefill on request. For decode see `families/test_families.py`."""

from __future__ import annotations

import pytest
import torch

from ktbench.engine.protocol import Unsupported
from tests.engine.engines import TOLERANCE, cell, changed, engine_for, logits, needs_avx512, relative
from tests.engine.families.plain import Late, build
from tests.engine.tiny import decode, load, prefill, run, spec, tiny_model

TOP_K = 4


@pytest.fixture(params=["original", pytest.param("fused", marks=needs_avx512())])
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
            assert system._components.state.carried is None


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])  # the second has a dense layer first
def test_prefill_on_request_follows_the_formula(name: str, backend: str) -> None:
    fused = backend == "fused"
    model, workload = changed(name, num_experts_per_tok=TOP_K), prefill(batch=2)
    system = engine_for(cell(model, workload, avx512=fused))
    for n in range(TOP_K + 1):
        seen = logits(system, cell(model, workload, avx512=fused, deferral=n, defer_prefill=True))
        assert relative(seen, Late(build(model), n).logits(workload)) < TOLERANCE
        plain = logits(system, cell(model, workload, avx512=fused))
        assert all(map(torch.equal, seen, plain)) == (n == 0)


@pytest.mark.parametrize("engine", [{"deferral": 1}, {"skipping": 1}])
def test_prefill_has_neither(engine: dict[str, int]) -> None:
    model = tiny_model()
    with pytest.raises(Unsupported, match="decode only"):
        load(model).configure(spec(model, prefill(), **engine))


def test_deferral_needs_a_later_layer() -> None:
    model = tiny_model(num_hidden_layers=1)
    with pytest.raises(Unsupported, match=r"engine\.deferral=1: .*2 MoE layers"):
        load(model).configure(spec(model, decode(), deferral=1))
