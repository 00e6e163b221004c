"""Expert Deferral and Skipping against their formula, written out again over plain modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ktbench.engine.experts import ExpertsOperator, MoERuntimeState, OriginalExperts
from ktbench.engine.forms import ExpertsPosition, is_experts
from ktbench.engine.fused import FusedHost
from ktbench.engine.observe import ExpertsReference
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import Routing
from ktbench.engine.synthetic import WeightPool, materialise_experts, skeleton
from ktbench.engine.weight_plan import Packing
from ktbench.spec.run_spec import WorkloadSpec
from tests.engine.engines import TOLERANCE, cell, changed, engine_for, logits, needs_avx512, relative
from tests.engine.families.plain import Late, build
from tests.engine.tiny import decode, load, logits_of_steps, prefill, run, spec, tiny_model

TOKENS, EXPERTS, TOP_K, LAYERS = 5, 8, 4, 3


def layers() -> list[nn.Module]:
    """Experts modules of three layers."""
    network = skeleton(tiny_model(num_hidden_layers=LAYERS))
    pool = WeightPool(3, 0.2)
    found = [(name, module) for name, module in network.named_modules() if is_experts(module)]
    for name, module in found:
        materialise_experts(module, name, pool)
    return [module for _, module in found]


def inputs(seed: int) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=draw)[:TOP_K] for _ in range(TOKENS)])
    gates = torch.rand(TOKENS, TOP_K, generator=draw)
    return torch.randn(TOKENS, 64, generator=draw).bfloat16(), Routing(ids=ids, gates=gates)


def masked(module: nn.Module, hidden: Tensor, routing: Routing, keep: Tensor) -> Tensor:
    """R over the kept (token, place) pairs, in float32."""
    only = Routing(ids=routing.ids, gates=routing.gates * keep)
    return ExpertsReference(OriginalExperts(module).matrices, hidden.float())(only)


def is_low(routing: Routing, n: int) -> Tensor:
    """True for each token's n lowest gate weights."""
    return torch.stack([gates <= gates.sort().values[n - 1] for gates in routing.gates])


@pytest.fixture(params=["original", pytest.param("fused", marks=needs_avx512())])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def operators(modules: list[nn.Module], state: MoERuntimeState, backend: str) -> list[ExpertsOperator]:
    """One operator for each module; the last in line is the last MoE layer."""
    backends: dict[str, list[Any]] = {"original": [OriginalExperts(module) for module in modules]}
    if backend == "fused":
        host = FusedHost((0,), Packing(), state.recorder)
        backends["fused"] = [host.pack(original.matrices, original.form) for original in backends["original"]]
    places = [ExpertsPosition(layer=i, number=i, is_last=i == len(modules) - 1) for i in range(len(modules))]
    state.fused = backend == "fused"
    empty = [None] * len(modules)
    return [
        ExpertsOperator(place, state, original=original, fused=fused)
        for place, original, fused in zip(places, backends["original"], backends.get("fused", empty), strict=True)
    ]


@torch.inference_mode()
@pytest.mark.parametrize("n", range(TOP_K + 1))
def test_deferral_follows_the_formula(n: int, backend: str) -> None:
    modules, state = layers(), MoERuntimeState(deferral=n)
    before: Tensor | None = None
    for place, (module, operator) in enumerate(zip(modules, operators(modules, state, backend), strict=True)):
        hidden, routing = inputs(place)
        late = is_low(routing, n) if n else torch.zeros_like(routing.gates, dtype=torch.bool)
        last = place == LAYERS - 1
        expected = masked(module, hidden, routing, torch.ones_like(late) if last else ~late)
        expected = expected if before is None else expected + before
        before = masked(module, hidden, routing, late)
        seen = operator(hidden, routing.ids, routing.gates).float()
        assert (seen - expected).norm() <= 0.01 * expected.norm()
    assert state.carried is None
    assert state.counted == {"deferred_experts": n * TOKENS * (LAYERS - 1), "skipped_experts": 0}


@torch.inference_mode()
@pytest.mark.parametrize("n", [1, 4])
def test_skipping_drops_the_lowest_without_renormalising(n: int, backend: str) -> None:
    modules, state = layers(), MoERuntimeState(skipping=n)
    for place, (module, operator) in enumerate(zip(modules, operators(modules, state, backend), strict=True)):
        hidden, routing = inputs(place)
        expected = masked(module, hidden, routing, ~is_low(routing, n))
        seen = operator(hidden, routing.ids, routing.gates).float()
        assert (seen - expected).norm() <= 0.01 * expected.norm()
    assert state.counted == {"deferred_experts": 0, "skipped_experts": n * TOKENS * LAYERS}


def moved(model_steps: WorkloadSpec, **engine: int) -> dict[str, int]:
    model = tiny_model()
    system = load(model)
    system.configure(spec(model, model_steps, **engine))
    run(system, model_steps.steps)
    return dict(system.counters())


def test_the_prompt_of_decode_neither_defers_nor_skips() -> None:
    """Two MoE layers, the last of which defers nothing: one layer, three steps, two sequences, two experts each."""
    assert moved(decode(batch=2), deferral=2) == {"deferred_experts": 12, "skipped_experts": 0}
    assert moved(decode(batch=2), skipping=2) == {"deferred_experts": 0, "skipped_experts": 24}


def test_deferral_changes_logits_and_no_deferral_does_not() -> None:
    model, workload = tiny_model(), decode(batch=2)
    base = logits_of_steps(model, workload)
    system = load(model)
    for engine in ({"deferral": 2}, {"skipping": 2}):
        system.configure(spec(model, workload, **engine))
        assert not any(map(torch.equal, run(system, 3), base))
    system.configure(spec(model, workload))
    assert all(map(torch.equal, run(system, 3), base))


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


@pytest.mark.parametrize("feature", ["deferral", "skipping"])
def test_none_is_the_engine_without_bit_for_bit(feature: str, backend: str) -> None:
    model, fused = tiny_model("deepseek_v3"), backend == "fused"
    system = engine_for(cell(model, decode(), avx512=fused))
    plain, none = (
        logits(system, cell(model, decode(batch=3), avx512=fused, **engine)) for engine in ({}, {feature: 0})
    )
    assert all(map(torch.equal, plain, none))
    assert system.counters()["deferred_experts"] == system.counters()["skipped_experts"] == 0


def test_deferral_needs_a_later_layer() -> None:
    model = tiny_model(num_hidden_layers=1)
    with pytest.raises(Unsupported, match=r"engine\.deferral=1: .*2 MoE layers"):
        load(model).configure(spec(model, decode(), deferral=1))
