"""Expert Deferral and Skipping, operator by operator, against their formula in float32 for every N."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.experts import ExpertsOperator, OriginalExperts
from ktbench.engine.forms import ExpertsPosition, is_experts
from ktbench.engine.observe import float32_output
from ktbench.engine.routing import Routing
from ktbench.engine.synthetic import WeightPool, skeleton
from ktbench.engine.weight_plan import Packing
from ktbench.spec.engine import EngineSpec
from tests.engine.engines import FUSED, cell, engine_for, logits, needs_vector
from tests.engine.families.plain import draw_experts
from tests.engine.tiny import decode, tiny_model

TOKENS, EXPERTS, TOP_K, LAYERS = 5, 8, 4, 3


@pytest.fixture(params=["original", pytest.param("fused", marks=needs_vector())])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def layers() -> list[nn.Module]:
    """Experts modules of three layers."""
    network, pool = skeleton(tiny_model(num_hidden_layers=LAYERS)), WeightPool(3, 0.2)
    found = [(name, module) for name, module in network.named_modules() if is_experts(module)]
    for name, module in found:
        draw_experts(module, name, pool)
    return [module for _, module in found]


def inputs(seed: int) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=draw)[:TOP_K] for _ in range(TOKENS)])
    gates = torch.rand(TOKENS, TOP_K, generator=draw)
    return torch.randn(TOKENS, 64, generator=draw).bfloat16(), Routing(ids=ids, gates=gates)


def masked(module: nn.Module, hidden: Tensor, routing: Routing, keep: Tensor) -> Tensor:
    """The experts' output over the kept (token, rank) pairs."""
    only = Routing(ids=routing.ids, gates=routing.gates * keep)
    return float32_output(OriginalExperts(module).matrices, hidden.float(), only)


def lowest(routing: Routing, n: int) -> Tensor:
    """True for each token's n lowest gate weights."""
    return routing.gates.argsort(dim=-1).argsort(dim=-1) < n


def operators(modules: list[nn.Module], state: MoERuntimeState, backend: str) -> list[ExpertsOperator]:
    """One operator for each module; the last in line is the last MoE layer."""
    originals = [OriginalExperts(module) for module in modules]
    fused: list[Any] = [None] * len(modules)
    if backend == "fused":
        from ktbench.engine.fused import FusedHost

        host = FusedHost((0,), Packing(), state.recorder)
        fused = [host.pack(original.matrices, original.form) for original in originals]
        host.choose(EngineSpec(**FUSED))
    state.fused = backend == "fused"
    positions = [ExpertsPosition(layer=i, number=i, is_last=i == len(modules) - 1) for i in range(len(modules))]
    return [
        ExpertsOperator(position, state, original=original, fused=packed)
        for position, original, packed in zip(positions, originals, fused, strict=True)
    ]


@torch.inference_mode()
@pytest.mark.parametrize("n", range(TOP_K + 1))
def test_deferral_follows_the_formula(n: int, backend: str) -> None:
    modules, state = layers(), MoERuntimeState(engine=EngineSpec(deferral=n))
    before: Tensor | float = 0.0
    for number, (module, operator) in enumerate(zip(modules, operators(modules, state, backend), strict=True)):
        hidden, routing = inputs(number)
        late = lowest(routing, n)
        last = number == LAYERS - 1
        expected = masked(module, hidden, routing, torch.ones_like(late) if last else ~late) + before
        before = masked(module, hidden, routing, late)
        seen = operator(hidden, routing.ids, routing.gates).float()
        assert (seen - expected).norm() <= 0.01 * expected.norm()
    assert state.pending is None
    assert state.counted == {"deferred_experts": n * TOKENS * (LAYERS - 1), "skipped_experts": 0}


@torch.inference_mode()
@pytest.mark.parametrize("n", [1, 4])
def test_skipping_drops_the_lowest_without_renormalising(n: int, backend: str) -> None:
    modules, state = layers(), MoERuntimeState(engine=EngineSpec(skipping=n))
    for number, (module, operator) in enumerate(zip(modules, operators(modules, state, backend), strict=True)):
        hidden, routing = inputs(number)
        expected = masked(module, hidden, routing, ~lowest(routing, n))
        seen = operator(hidden, routing.ids, routing.gates).float()
        assert (seen - expected).norm() <= 0.01 * expected.norm()
    assert state.counted == {"deferred_experts": 0, "skipped_experts": n * TOKENS * LAYERS}


@pytest.mark.parametrize("feature", ["deferral", "skipping"])
def test_none_is_the_engine_without_bit_for_bit(feature: str, backend: str) -> None:
    model, kernels = tiny_model("deepseek_v3"), FUSED if backend == "fused" else {}
    system = engine_for(cell(model, decode(), **kernels))
    plain, none = (logits(system, cell(model, decode(batch=3), **kernels, **engine)) for engine in ({}, {feature: 0}))
    assert all(map(torch.equal, plain, none))
    assert system.counters()["deferred_experts"] == system.counters()["skipped_experts"] == 0
