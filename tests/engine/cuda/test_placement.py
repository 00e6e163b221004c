"""Both roles serve one call: what they give together is what all experts give."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.backend import MoERuntimeState
from ktbench.engine.cuda.experts import SlotExperts
from ktbench.engine.cuda.handover import HostLink
from ktbench.engine.cuda.offload import HostOffloadBackend
from ktbench.engine.device_placement import DevicePlacement, detach
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import ExpertMatrices, ExpertsPosition
from ktbench.engine.observe import float32_output
from ktbench.engine.placement import ExpertSwap
from ktbench.engine.routing import Residence, Routing
from ktbench.spec.engine import PlacementSpec
from tests.engine.cuda.fakes import DirectExperts, FakeCall, FakeDevice, FakeExperts
from tests.tiny import tiny_spec

E, H, I, T, K = 6, 32, 16, 4, 3  # noqa: E741
DRAW = torch.Generator().manual_seed(3)
MATRICES = [
    ExpertMatrices(
        **{
            name: (torch.randn(size, generator=DRAW) / 4).bfloat16()
            for name, size in (("gate", (I, H)), ("up", (I, H)), ("down", (H, I)))
        }
    )
    for _ in range(E)
]


def reference(hidden: Tensor, routing: Routing) -> Tensor:
    """All experts in float32; -1 is no expert."""
    known = Routing(ids=routing.ids.clamp(min=0), gates=routing.gates * (routing.ids >= 0))
    return float32_output(MATRICES.__getitem__, hidden.float(), known)


class HostExperts(FakeExperts):
    """Experts on the host that compute what those weights give."""

    def host_call(self, hidden: Tensor, routing: Routing, output: Tensor) -> FakeCall:
        def compute(hidden: Tensor, routing: Routing) -> Tensor:
            return reference(hidden, routing).to(hidden.dtype)

        return FakeCall(hidden, routing, output, self.log, compute)


def call(seed: int) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=draw)[:K] for _ in range(T)])
    return torch.randn(T, H, generator=draw).bfloat16(), Routing(ids=ids, gates=torch.rand(T, K, generator=draw))


@pytest.fixture
def operator() -> ExpertsOperator:
    """Experts 1 and 4 live with the device."""
    state = MoERuntimeState(fused=True, concurrent=True)
    offload = HostOffloadBackend(HostExperts(), HostLink(FakeDevice(), pinned=False), state.recorder.watch, layer=0)
    made = ExpertsOperator(ExpertsPosition(layer=0, number=0, is_last=True), state, original=None, fused=offload)
    made.residence = Residence(torch.isin(torch.arange(E), torch.tensor([1, 4])))
    made.device_backend = SlotExperts(E, [1, 4], MATRICES.__getitem__, torch.device("cpu"))
    return made


def assert_adds_up(operator: ExpertsOperator, seed: int) -> None:
    hidden, routing = call(seed)
    seen = operator(hidden, routing.ids, routing.gates).float()
    truth = reference(hidden, routing)
    assert (seen - truth).norm() <= 0.01 * truth.norm()


@pytest.mark.parametrize("seed", range(3))
def test_the_roles_add_up(operator: ExpertsOperator, seed: int) -> None:
    assert_adds_up(operator, seed)
    assert operator.residence is not None
    assert operator.residence.served.sum() == T * K


def test_moves_change_who_serves_and_not_what(operator: ExpertsOperator) -> None:
    assert isinstance(operator.device_backend, SlotExperts)
    assert operator.residence is not None
    operator.residence.evict(4)
    operator.residence.admit(0)
    operator.device_backend.move(0, 4, MATRICES[0])
    assert_adds_up(operator, 0)
    only_moved = Routing(ids=torch.zeros(T, 1, dtype=torch.int64), gates=torch.ones(T, 1))
    before = operator.residence.served.clone()
    operator(call(1)[0], only_moved.ids, only_moved.gates) + 0
    assert (operator.residence.served - before).tolist() == [0, T]


class Slots:
    """Experts of a layer that live with a device."""

    def __init__(self) -> None:
        self.backend = DirectExperts()

    def move(self, move: ExpertSwap) -> None:
        """Nothing to copy."""


def test_the_memory_of_a_device_is_free_for_the_next_cell() -> None:
    """Cells with different placements take turns; the weights of one must not stay there during another."""
    held: list[weakref.ref[Slots]] = []

    def make(_: ExpertsOperator, at_device: NDArray[np.bool_]) -> Slots:
        assert at_device.sum() == 4
        slots = Slots()
        held.append(weakref.ref(slots))
        return slots

    half = PlacementSpec(policy="uniform", ratio=0.5)
    state = MoERuntimeState(fused=True, concurrent=False)
    operators = [
        ExpertsOperator(ExpertsPosition(layer=i, number=i, is_last=i == 1), state, original=None, fused=DirectExperts())
        for i in range(2)
    ]
    placement = DevicePlacement(half, tiny_spec().model, make, torch.device("cpu"))
    placement.attach(operators)
    placement.attach(operators)
    assert [slots() is not None for slots in held] == [True, True]
    detach(operators)
    placement.release()
    assert [slots() for slots in held] == [None, None]
    placement.attach(operators)
    assert [slots() is not None for slots in held] == [False, False, True, True]
