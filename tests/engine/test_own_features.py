"""Features from outside: hooks against deferral and skipping, in passes, recorded steps and served requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.components import EngineComponents
from ktbench.engine.protocol import Unsupported
from ktbench.run.check import check, check_the_check
from ktbench.spec.features import BY_NAME, Feature, FeatureValue, register
from ktbench.spec.record import Outcome
from tests.engine.engines import (
    FUSED,
    PACKED_DENSE,
    TOLERANCE,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    relative,
)
from tests.engine.serving.serving import answers, drawn, loaded, opened
from tests.engine.tiny import decode, prefill, run

MODEL = changed("qwen3_moe", num_experts_per_tok=4)
pytestmark = needs_vector()
ON: dict[str, Any] = {**FUSED, "own": {"mine": 1}}


def lowest(gates: Tensor, count: int) -> Tensor:
    """Bool [T, k]: each token's `count` lowest by gate weight."""
    order = gates.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(gates, dtype=torch.bool).scatter(1, order[:, gates.shape[1] - count :], True)


class Defer:
    def __init__(self, count: int) -> None:
        self.count = count

    def defer(self, layer: int, ids: Tensor, gates: Tensor) -> Tensor:
        return lowest(gates, self.count)


class Drop(Defer):
    defer: Any = property()  # has no such method

    def choose(self, layer: int, ids: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        return ids.masked_fill(lowest(gates, self.count), -1), gates


class Watch:
    """Runs the engine's own experts, and sees all layers."""

    def __init__(self, count: int) -> None:
        self.layers: list[int] = []

    def run(self, layer: int, hidden: Tensor, ids: Tensor, gates: Tensor, experts: Any) -> Tensor:
        self.layers.append(layer)
        assert experts.weights(0).gate.shape[1] == hidden.shape[1]
        output: Tensor = experts(hidden, ids, gates)
        return output


@pytest.fixture
def mine() -> Iterator[Callable[..., None]]:
    """Adds a feature with that hook, and takes it back."""

    def add(hook: Callable[[Any], object], **options: Any) -> None:
        defaults = {"title": "t", "off": 0, "counter": "mine_pairs", "routes": True, "alters_outputs": True}
        register(Feature(name="mine", hook=hook, **(defaults | options)))

    yield add
    BY_NAME.pop("mine", None)


@PACKED_DENSE
@pytest.mark.parametrize("recordable", [False, True])
@pytest.mark.parametrize(("hook", "same"), [(Defer, "deferral"), (Drop, "skipping")])
def test_a_hook_that_does_what_a_feature_does_gives_its_logits(
    hook: Any, same: str, recordable: bool, lean: bool, mine: Callable[..., None]
) -> None:
    mine(hook, recordable=recordable)
    work = decode(batch=2)
    for count in (1, 4):  # 4: every expert of a token
        ours = cell(MODEL, work, packed_dense=lean, **FUSED, **{same: count})
        own = cell(MODEL, work, packed_dense=lean, **FUSED, own={"mine": count})
        system = engine_for(ours, own)
        truth = logits(system, ours)
        system.configure(own)
        before = dict(system.counters())
        seen = run(system, work.steps)
        assert relative(seen, truth) < TOLERANCE
        assert all(map(torch.equal, seen, truth)) == (recordable or not lean)  # else steps are not recorded
        moved = {name: now - before[name] for name, now in system.counters().items()}
        layers = MODEL.shape.moe_layers - (same == "deferral")
        assert moved["mine_pairs"] == count * layers * work.batch * work.steps
        assert moved[BY_NAME[same].counter] == 0
        assert all(map(torch.equal, logits(system, ours), truth))


def test_what_runs_the_experts_is_one_object_for_all_layers(mine: Callable[..., None]) -> None:
    made: list[Watch] = []
    mine(lambda value: made.append(Watch(value)) or made[-1])
    work = decode(batch=2)
    base, own = cell(MODEL, work, **FUSED), cell(MODEL, work, **ON)
    system = engine_for(base, own)
    truth = logits(system, base)
    assert all(map(torch.equal, logits(system, own), truth))
    assert all(map(torch.equal, logits(system, own), truth))
    (hook,) = made
    assert set(hook.layers) == {one.position.layer for one in system._components.operators}
    pairs = 2 * work.batch * work.steps * MODEL.shape.moe_layers * MODEL.shape.top_k
    assert system.counters()["mine_pairs"] == pairs
    assert system.work() is None  # not what the trace says


def test_calls_that_defer_all_or_some_are_right_and_can_be_wrong(mine: Callable[..., None]) -> None:
    """An empty call is held against zeros, and the mutants are those of calls with experts."""
    mine(Defer)
    for count in (1, 4):
        own = cell(MODEL, decode(batch=2), **FUSED, own={"mine": count})
        system = engine_for(own)
        logits(system, own)
        seen = system.observe(1, 7)
        assert {bool((one.ids >= 0).all()) for one in seen} == {False, True} if count == 1 else True
        assert check(seen, system.reference, 0.02).outcome is Outcome.OK
        assert check_the_check(seen, system.reference, 0.02) == ""
        empty = [one for one in seen if not (one.ids >= 0).any()]
        assert bool(empty) == (count == 4)
        for one in empty:
            one.output[:] = 1e-3
            assert check([one], system.reference, 0.02).outcome is Outcome.WRONG


def test_prompts_are_left_alone_unless_asked(mine: Callable[..., None]) -> None:
    mine(Drop)
    base, own, asked = (cell(MODEL, prefill(), **one) for one in (FUSED, ON, {**ON, "defer_prefill": True}))
    system = engine_for(base, asked)
    truth = logits(system, base)
    assert not all(map(torch.equal, logits(system, asked), truth))
    with pytest.raises(Unsupported, match="engine.defer_prefill=true"):
        system.configure(own)


@pytest.mark.parametrize(
    ("method", "found", "why"),
    [
        ("defer", lambda ids: 1 / 0, "ZeroDivisionError"),
        ("defer", lambda ids: ids, r"torch\.int64, must be a tensor .* of torch\.bool"),
        ("defer", lambda ids: ids[:1] > 0, r"must be a tensor \[2, 4\]"),
        ("choose", lambda ids: ids, "NoneType"),
        ("run", lambda ids: None, "run gives NoneType"),
    ],
)
def test_a_hook_that_fails_says_so(method: str, found: Callable[[Tensor], Any], why: str, mine: Any) -> None:
    def call(self: object, layer: int, *given: Tensor) -> Any:
        return found(given[1] if method == "run" else given[0])

    mine(lambda value: type("Hook", (), {method: call})())
    own = cell(MODEL, decode(batch=2), **ON)
    with pytest.raises(Unsupported, match=rf"engine\.own\.mine=1: .*{why}"):
        logits(engine_for(own), own)


def test_a_hook_that_cannot_be_made_and_one_that_is_not_there_say_so(mine: Callable[..., None]) -> None:
    own = cell(MODEL, decode(), **ON)
    with pytest.raises(Unsupported, match="no installed package and no engine.own_file"):
        engine_for(own).configure(own)
    mine(lambda value: value / 0)
    with pytest.raises(Unsupported, match=r"engine\.own\.mine=1: ZeroDivisionError"):
        engine_for(own).configure(own)


@PACKED_DENSE
def test_requests_are_served_with_it(lean: bool, mine: Callable[..., None]) -> None:
    mine(Defer, recordable=True)
    prompts = drawn((5, 9, 3))
    held = loaded(MODEL, packed_dense=lean, **FUSED)

    def served(
        components: EngineComponents, **engine: FeatureValue | dict[str, FeatureValue]
    ) -> list[list[int | None]]:
        options = {"packed_dense": lean, "batching": True, **FUSED, **engine}
        return answers(opened(MODEL, held=components, **options), prompts)

    assert served(held, own={"mine": 2}) == served(held, deferral=2)
    assert held.counters()["mine_pairs"] == held.counters()["deferred_experts"] > 0
