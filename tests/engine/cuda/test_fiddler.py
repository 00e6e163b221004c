"""Fiddler's rule, and experts on either side of it against float32 arithmetic of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ktbench.engine.cuda.fiddler import (
    FiddlerCosts,
    FiddlerExperts,
    FiddlerRuntime,
    copied_from,
    faster_at_device,
    measure_costs,
    runs_at_device,
)
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import expert_positions
from ktbench.engine.observe import float32_output
from ktbench.engine.routing import Routing, split_ids
from tests.engine.cuda.fakes import FakeDevice
from tests.engine.families.plain import build
from tests.engine.tiny import EXPERTS, tiny_model

H, K = 64, 3
CPU = torch.device("cpu")
# Gate and up as halves; transposed, in turns and with biases.
FAMILIES = ["qwen3_30b_a3b", "gpt_oss_20b"]


def costs(
    host_token_s: float = 0.0, copy_s: float = 0.0, host_call_s: float = 0.0, device_s: float = 0.0
) -> FiddlerCosts:
    return FiddlerCosts(host_call_s=host_call_s, host_token_s=host_token_s, copy_s=copy_s, device_s=device_s)


# From so many tokens on an expert is copied.
HOST, DEVICE = costs(copy_s=1.0), costs(host_token_s=1.0, copy_s=0.5)


def copied_at(tokens: int) -> FiddlerCosts:
    return costs(host_token_s=1.0, copy_s=tokens - 0.5)


@cache
def original(family: str = FAMILIES[0]) -> OriginalExperts:
    network = build(tiny_model(family))
    network.requires_grad_(False)
    name, _ = expert_positions(network)[0]
    return OriginalExperts(network.get_submodule(name))


def fiddler(decided_by: FiddlerCosts | None, family: str = FAMILIES[0], stream: Any = None) -> FiddlerExperts:
    copier = FiddlerRuntime(CPU, stream or FakeDevice(), {})
    copier.costs = decided_by
    return copier.experts(original(family))


def call(rows: list[list[int]], seed: int = 1) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(rows), H, generator=draw).bfloat16()
    return hidden, Routing(ids=torch.tensor(rows), gates=torch.rand(len(rows), len(rows[0]), generator=draw))


def drawn(tokens: int, seed: int = 1) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randperm(EXPERTS, generator=draw)[:K].tolist() for _ in range(tokens)]


def truth(hidden: Tensor, routing: Routing, family: str = FAMILIES[0]) -> Tensor:
    return float32_output(original(family).matrices, hidden.float(), routing)


def error(seen: Tensor, hidden: Tensor, routing: Routing, family: str = FAMILIES[0]) -> float:
    exact = truth(hidden, routing, family)
    return float((seen.float() - exact).norm() / exact.norm().clamp(min=1e-9))


SECONDS = st.floats(0, 10, allow_subnormal=False)
COSTS = st.builds(costs, SECONDS, SECONDS, SECONDS, SECONDS)
ROWS = st.lists(st.lists(st.integers(-1, EXPERTS - 1), min_size=K, max_size=K), min_size=1, max_size=12)


def test_the_constants_of_fiddlers_own_code() -> None:
    """7 a token on the CPU, 70 for the GPU with the copy."""
    assert copied_from(costs(host_token_s=7, copy_s=60, device_s=10)) == 11
    assert not runs_at_device(10, costs(host_token_s=7, copy_s=60, device_s=10)), "only what is faster"


@given(COSTS, st.integers(0, 10**6))
def test_an_expert_is_copied_from_some_number_of_tokens_on(decided_by: FiddlerCosts, tokens: int) -> None:
    first = copied_from(decided_by)
    assert runs_at_device(tokens, decided_by) == (first is not None and tokens >= first)


@given(COSTS)
def test_the_sentence_names_that_number(decided_by: FiddlerCosts) -> None:
    first = copied_from(decided_by)
    assert decided_by.explain().endswith("is never copied" if first is None else f"is copied from {first} tokens on")


def test_the_sentence_has_units() -> None:
    assert costs(host_token_s=7e-6, copy_s=60e-6, host_call_s=1e-3, device_s=2e-3).explain() == (
        "an expert takes 1 ms and 0.007 ms a token on the host, 0.06 ms to copy and 2 ms to run on the device, "
        "and is copied from 152 tokens on"
    )


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["host_call_s", "host_token_s", "copy_s", "device_s"])
def test_costs_are_seconds(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={seconds}: must be 0 or more seconds"):
        costs(**{name: seconds})


@given(ROWS, COSTS)
def test_every_expert_has_one_side(rows: list[list[int]], decided_by: FiddlerCosts) -> None:
    ids = torch.tensor(rows)
    hosts, devices = split_ids(ids, faster_at_device(ids, decided_by))
    assert torch.equal(torch.where(hosts >= 0, hosts, devices), ids)
    assert ((hosts == -1) | (devices == -1)).all()
    for expert in range(EXPERTS):
        here = (devices == expert).any()
        assert here == runs_at_device(int((ids == expert).sum()), decided_by)


@given(ROWS, st.integers(1, 8), st.sampled_from(FAMILIES))
def test_any_routing_and_any_rule_against_float32(rows: list[list[int]], tokens: int, family: str) -> None:
    """All on the host, all on the device, or both; ids of no expert among them, an expert twice."""
    hidden, routing = call(rows)
    assert error(fiddler(copied_at(tokens), family)(hidden, routing), hidden, routing, family) < 0.01


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decided_by", [HOST, DEVICE, copied_at(3)], ids=["host", "device", "both"])
@pytest.mark.parametrize("tokens", [1, 7])
def test_type_and_counters(family: str, decided_by: FiddlerCosts, tokens: int) -> None:
    experts, (hidden, routing) = fiddler(decided_by, family), call(drawn(tokens))
    output = experts(hidden, routing)
    assert (output.dtype, output.shape) == (hidden.dtype, hidden.shape)
    assert torch.equal(output, experts.start(hidden, routing)())
    copied = sum(runs_at_device(int((routing.ids == i).sum()), decided_by) for i in range(EXPERTS))
    on_host = len(routing.ids.unique()) - copied
    assert experts.copier.counted == {"experts_copied": 2 * copied, "experts_on_host": 2 * on_host}


def test_mutants_are_seen() -> None:
    """The comparison above can fail: an expert dropped, another expert's weights, gates left out."""
    hidden, routing = call(drawn(5))
    others = [
        Routing(ids=routing.ids.masked_fill(routing.ids == routing.ids[0, 0], -1), gates=routing.gates),
        Routing(ids=(routing.ids + 1) % EXPERTS, gates=routing.gates),
        Routing(ids=routing.ids, gates=torch.ones_like(routing.gates)),
    ]
    assert all(error(fiddler(DEVICE)(hidden, other), hidden, routing) > 0.05 for other in others)


def test_all_on_the_host_is_base() -> None:
    hidden, routing = call(drawn(9))
    assert torch.equal(fiddler(HOST)(hidden, routing), original()(hidden, routing))


def test_no_expert_costs_the_host_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base runs an expert without weight for an id of no expert, which would be one for each pair of the device."""
    seen: list[Routing] = []
    plain = OriginalExperts.__call__

    def watched(self: OriginalExperts, hidden: Tensor, routing: Routing) -> Tensor:
        seen.append(routing)
        return plain(self, hidden, routing)

    monkeypatch.setattr(OriginalExperts, "__call__", watched)
    rows = [[0, 1, 2], [0, 3, -1], [0, -1, -1]]
    fiddler(copied_at(3))(*call(rows))
    assert [routing.ids.flatten().tolist() for routing in seen] == [[1, 2, 3]]


def test_no_expert_at_all() -> None:
    assert (fiddler(DEVICE)(*call([[-1, -1, -1]])) == 0).all()


class Noting(FakeDevice):
    """A stream that notes where copies come from."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[int] = []
        self.targets: set[int] = set()

    def copy(self, to: Tensor, source: Tensor) -> None:
        self.sources.append(source.data_ptr())
        self.targets.add(to.data_ptr())
        super().copy(to, source)


def test_each_expert_is_copied_once_a_call_and_layers_share_the_room() -> None:
    stream = Noting()
    copier = FiddlerRuntime(CPU, stream, {})
    copier.costs = DEVICE
    layers = [copier.experts(original()) for _ in range(2)]
    hidden, routing = call([[5, 2, 5], [2, 0, -1]])
    for layer in layers:
        layer(hidden, routing)
    parameters = [held for _, held in original().module.named_parameters(recurse=False)]
    expected = [held[i].data_ptr() for i in (0, 2, 5) for held in parameters]
    assert stream.sources == 2 * expected
    assert len(stream.targets) == len(parameters)


def test_weights_are_those_of_the_host() -> None:
    assert torch.equal(fiddler(HOST).matrices(2).down, original().matrices(2).down)


def test_a_call_needs_costs() -> None:
    with pytest.raises(ValueError, match="costs of host and device are measured before the first call"):
        fiddler(None)(*call(drawn(1)))


class Clocked(FakeDevice):
    """A machine on which a copy of a tensor takes 3 s and waiting for the device 0.25 s."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def copy(self, to: Tensor, source: Tensor) -> None:
        self.now += 3.0
        super().copy(to, source)

    def finish(self) -> None:
        self.now += 0.25


def host_takes(seconds: Callable[[int], float], machine: Clocked, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Its experts take `seconds` each for so many tokens, and 0.25 s pass between; gives the experts that it runs."""
    ran: set[int] = set()

    def timed(_self: OriginalExperts, hidden: Tensor, routing: Routing) -> Tensor:
        experts, tokens = routing.ids.flatten().unique(return_counts=True)
        ran.update(experts.tolist())
        machine.now += sum(seconds(some) for some in tokens.tolist()) - 0.25
        return hidden

    monkeypatch.setattr(OriginalExperts, "__call__", timed)
    return ran


def test_costs_are_the_line_through_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Clocked()
    ran = host_takes(lambda tokens: 2.0 + 0.5 * tokens, machine, monkeypatch)
    seen = measure_costs(fiddler(None, stream=machine), clock=lambda: machine.now)
    assert seen.host_token_s == pytest.approx(0.5)
    assert seen.host_call_s == pytest.approx(2.0)
    assert (seen.copy_s, seen.device_s) == (6.25, 0.25)
    assert ran == set(range(EXPERTS)), "weights that were not just used"


def test_slow_tries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, runs = Clocked(), iter(range(100))
    host_takes(lambda tokens: 100.0 if next(runs) in (0, 4, 17) else 1.0 * tokens, machine, monkeypatch)
    assert measure_costs(fiddler(None, stream=machine), clock=lambda: machine.now).host_token_s == pytest.approx(1.0)


def test_a_host_that_needs_less_for_more_has_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Clocked()
    host_takes(lambda tokens: 3.0 if tokens == 1 else 2.0, machine, monkeypatch)
    seen = measure_costs(fiddler(None, stream=machine), clock=lambda: machine.now)
    assert (seen.host_call_s, seen.host_token_s) == (3.0, 0.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_measured_on_this_machine(family: str) -> None:
    experts = fiddler(None, family)
    experts.copier.costs = measure_costs(experts, tries=1)
    hidden, routing = call(drawn(6))
    assert error(experts(hidden, routing), hidden, routing, family) < 0.01
