"""Host offload puts copies and host functions into the stream in the right order, on memory that stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.cuda.handover import HostLink
from ktbench.engine.cuda.offload import CudaOriginal, HostOffloadBackend, Transfer
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.decode.timeline import ModuleWatch, Where
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import ExpertsPosition
from ktbench.engine.routing import Routing
from ktbench.spec.engine import EngineSpec
from tests.engine.cuda.fakes import DirectExperts, FakeDevice, FakeExperts, Queue, role_on, weighted_ids

T, K, H = 3, 4, 8


def call(seed: int, k: int = K) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 6, (T, k), generator=draw)
    hidden = torch.randn(T, H, generator=draw).bfloat16()
    return hidden, Routing(ids=ids, gates=torch.rand(T, k, generator=draw))


def offload(experts: FakeExperts, link: HostLink) -> HostOffloadBackend:
    return HostOffloadBackend(experts, link, ModuleWatch(), layer=0)  # type: ignore[arg-type]


def linked(stream: Any) -> HostLink:
    return HostLink(stream, pinned=False)


def test_one_copy_each_way_and_one_wait() -> None:
    experts, stream = FakeExperts(), Queue()
    hidden, routing = call(0)
    fetch = offload(experts, linked(stream)).start(hidden, routing)
    (made,) = experts.handed
    assert [kind for kind, _ in stream.put] == ["fork", "copy", "call"]
    assert stream.put[2][1] == made.submit
    output = fetch()
    assert [kind for kind, _ in stream.put[3:]] == ["call", "copy", "join"]
    assert (stream.put[3][1], stream.put[4][1]) == (made.wait, output)
    assert experts.log == [], "no call waited"
    stream.finish()
    assert experts.log == ["submit", "wait"]
    assert torch.equal(output, weighted_ids(hidden, routing))


def test_what_comes_late_is_added_on_the_host_in_the_next_layer() -> None:
    """Per layer still one copy each way and one wait."""
    experts, stream = [FakeExperts() for _ in range(2)], Queue()
    link = linked(stream)
    first, second = (offload(each, link) for each in experts)
    calls = [call(seed) for seed in range(3)]
    (hidden, due), (_, late), (other, following) = calls
    fetch, before = first.begin(hidden, due, late, None)
    seen = [fetch()]
    fetch, nothing = second.begin(other, following, None, before)
    seen.append(fetch())
    assert nothing is None
    assert [kind for kind, _ in stream.put] == ["fork", "copy", "call", "call", "copy", "join"] * 2
    stream.finish()
    assert torch.equal(seen[0], weighted_ids(hidden, due))
    assert torch.equal(seen[1], weighted_ids(other, following) + weighted_ids(hidden, late))
    assert experts[0].log + experts[1].log == ["submit", "submit", "wait", "wait", "submit", "wait"]


def test_what_came_late_can_be_fetched_by_itself() -> None:
    experts, stream = FakeExperts(), Queue()
    (hidden, due), (_, late) = call(0), call(1)
    fetch, following = offload(experts, linked(stream)).begin(hidden, due, late, None)
    assert following is not None
    seen = fetch(), following()
    stream.finish()
    assert all(map(torch.equal, seen, (weighted_ids(hidden, due), weighted_ids(hidden, late))))


@given(tokens=st.integers(1, 9), width=st.integers(1, 65), due=st.integers(1, 5), late=st.integers(0, 4))
def test_what_is_packed_is_unpacked(tokens: int, width: int, due: int, late: int) -> None:
    draw = torch.Generator().manual_seed(tokens * width)
    hidden = torch.randn(tokens, width, generator=draw).bfloat16()
    routings = [
        Routing(ids=torch.randint(-1, 99, (tokens, k), generator=draw), gates=torch.rand(tokens, k, generator=draw))
        for k in (due, late)
    ]
    parts = hidden, routings[0], routings[1] if late else None
    transfer, sent = Transfer.of(*parts), Transfer.pack(*parts)
    memory = torch.zeros(transfer.nbytes, dtype=torch.uint8)
    assert sent.nbytes == transfer.sent_bytes
    memory[: sent.nbytes] = sent
    for number in range(2 if late else 1):
        transfer.output(memory, number).fill_(number)
    unpacked, *seen = transfer.unpacked(memory)
    assert torch.equal(unpacked, hidden)
    for one, expected in zip(seen, routings, strict=True):
        assert torch.equal(one.ids, expected.ids)
        assert torch.equal(one.gates, expected.gates)
    assert all((transfer.output(memory, number) == number).all() for number in range(2 if late else 1))


def test_calls_in_flight_have_memory_of_their_own_whatever_their_shapes() -> None:
    """Expert Deferral with N = k / 2: three calls of one size."""
    experts, stream = FakeExperts(), Queue()
    backend = offload(experts, linked(stream))
    calls = [call(seed) for seed in range(3)]
    fetches = [backend.start(*each) for each in calls]
    outputs = [fetch() for fetch in reversed(fetches)]
    stream.finish()
    for output, (hidden, routing) in zip(reversed(outputs), calls, strict=True):
        assert torch.equal(output, weighted_ids(hidden, routing))


def test_layers_share_memory_and_passes_use_the_same() -> None:
    link = linked(FakeDevice())
    layers = [FakeExperts() for _ in range(3)]
    backends = [offload(experts, link) for experts in layers]
    for turn in range(4):
        for backend in backends:
            backend(*call(turn))
    assert [len(experts.made) for experts in layers] == [1, 1, 1]
    assert len({experts.made[0].hidden.data_ptr() for experts in layers}) == 1
    backends[0](*call(0, k=2))
    assert len(layers[0].made) == 2, "another size, another call"


def test_a_change_of_kernels_lets_go_of_calls_when_the_stream_is_through() -> None:
    experts, stream = FakeExperts(), Queue()
    backend = offload(experts, linked(stream))
    first = backend(*call(0))
    experts.settings = "second"
    backend(*call(1))
    assert experts.log == ["submit", "wait"], "the stream was finished first"
    assert torch.equal(first, weighted_ids(*call(0)))
    assert len(experts.made) == 2


def test_errors_of_c_functions_come_with_the_next_check_and_once() -> None:
    stream = FakeDevice()
    role = role_on(stream, CallRecorder())
    good, bad = (role.backends(None, FakeExperts(), layer)[1] for layer in range(2))
    assert good is not None
    assert bad is not None
    hidden, routing = call(0)
    good(hidden, routing)
    role.check()
    bad(hidden, Routing(ids=routing.ids + 99, gates=routing.gates))
    with pytest.raises(IndexError, match="no such expert"):
        role.check()
    role.check()


def test_waiting_shows_in_a_timeline() -> None:
    watch, seen = ModuleWatch(), []
    stream = FakeDevice()
    backend = HostOffloadBackend(FakeExperts(), linked(stream), watch, layer=5)  # type: ignore[arg-type]
    stream.call = lambda *_: seen.append(watch.here)  # type: ignore[method-assign]
    backend(*call(0))
    assert seen == [Where("other"), Where("wait", 5)]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_operators_give_the_same_through_a_stream(n: int) -> None:
    """Three layers with deferral, each on the output of the one before, on LazyTensors as with concurrent roles."""

    def outputs(concurrent: bool, backends: list[Any]) -> list[Tensor]:
        state = MoERuntimeState(fused=True, concurrent=concurrent, engine=EngineSpec(deferral=n))
        seen = []
        for number, backend in enumerate(backends):
            place = ExpertsPosition(layer=number, number=number, is_last=number == 2)
            hidden, routing = call(number)
            operator = ExpertsOperator(place, state, original=None, fused=backend)
            seen.append(operator(hidden, routing.ids, routing.gates) + hidden)
        return seen

    link = linked(FakeDevice())
    handed = [offload(FakeExperts(), link) for _ in range(3)]
    expected = outputs(False, [DirectExperts() for _ in range(3)])
    assert all(map(torch.equal, outputs(True, handed), expected))


def test_base_copies_both_ways() -> None:
    direct = DirectExperts()
    original = CudaOriginal(direct)
    hidden, routing = call(0)
    assert torch.equal(original(hidden, routing), direct(hidden, routing))
    assert torch.equal(original.start(hidden, routing)(), direct(hidden, routing))
    assert torch.equal(original.matrices(2).gate, direct.matrices(2).gate)


class PackedFake:
    """Experts of the kernel extension on a pool that works by itself."""

    settings = "packed"

    def __init__(self, kernels: Any) -> None:
        packed = kernels.PackedExperts(6, 64, 32)
        draw = np.random.default_rng(7)
        for i in range(6):
            shapes = ((32, 64), (32, 64), (64, 32))
            matrices = [torch.from_numpy(draw.standard_normal(shape) / 8).bfloat16() for shape in shapes]
            packed.write_expert(i, *map(_bits, matrices))
        self._moe = kernels.MoE(packed, kernels.ThreadPool([0], 0, own=True))

    def host_call(self, hidden: Tensor, routing: Routing, output: Tensor) -> Any:
        arrays = _bits(hidden), routing.ids.numpy(), routing.gates.numpy(), _bits(output)
        return self._moe.host_call(*arrays, isa="reference")

    @staticmethod
    def hand_over(*calls: Any) -> Any:
        return pytest.importorskip("ktbench._kernels").HandOver(*calls)

    def direct(self, hidden: Tensor, routing: Routing) -> Tensor:
        output = torch.empty_like(hidden)
        self._moe.forward(_bits(hidden), routing.ids.numpy(), routing.gates.numpy(), _bits(output), isa="reference")
        return output

    def matrices(self, i: int) -> Any:
        raise AssertionError


def _bits(tensor: Tensor) -> Any:
    return tensor.view(torch.uint16).numpy()


def test_the_kernels_own_host_calls_fit() -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")
    experts, stream = PackedFake(kernels), Queue()
    backend = offload(experts, linked(stream))  # type: ignore[arg-type]
    hidden, routing = torch.randn(T, 64).bfloat16(), call(3)[1]
    fetches = [backend.start(hidden, routing), backend.start(-hidden, routing)]
    outputs = [fetch() for fetch in fetches]
    stream.finish()
    backend.check()
    assert torch.equal(outputs[0], experts.direct(hidden, routing))
    assert torch.equal(outputs[1], experts.direct(-hidden, routing))
