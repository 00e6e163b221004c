"""Experts that live with the device as the host packs them, against float32 arithmetic of the same weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.backend import ExpertsBackend, MoERuntimeState
from ktbench.engine.cuda import experts as products
from ktbench.engine.cuda import packed as module
from ktbench.engine.cuda.packed import PackedLayout, PackedSlots
from ktbench.engine.cuda.residents import Bf16Residents, PackedResidents
from ktbench.engine.device_placement import DevicePlacement
from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import ExpertsPosition, Glu
from ktbench.engine.placement import ExpertSwap
from ktbench.engine.routing import Residence, Routing
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.weights import DEVICE_UNPACKS, PAIRS_AT_ONCE
from tests.engine.cuda.fakes import DirectExperts, FakeDevice, Operations, Queue
from tests.engine.cuda.test_streamed import E, Packed, call, relative, streamed
from tests.tiny import tiny_spec

H, I = 64, 96  # noqa: E741
CPU = torch.device("cpu")
PLACED = [3, 0, 4]
FORMATS = [precision for precision in DEVICE_UNPACKS if precision != "bf16"]
TOLERANCE = 0.02


@cache
def packed(precision: str, biases: bool = False) -> Packed:
    return Packed(precision, H, I, biases=biases)


def slots(host: Packed, precision: Any, placed: list[int] = PLACED) -> PackedSlots:
    layout = streamed(host, precision).layout
    return PackedSlots(host.memory, placed, layout, Glu(), CPU)


def expected(host: Packed, placed: list[int], hidden: Tensor, routing: Routing) -> Tensor:
    here = torch.isin(routing.ids, torch.tensor(placed))
    return host(hidden, Routing(ids=torch.where(here, routing.ids, -1), gates=routing.gates))


@pytest.fixture(params=["grouped", "not grouped"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with and without grouped products in one kernel."""
    monkeypatch.setattr(module, "groups_at_once", lambda _: request.param == "grouped")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_every_format_against_float32(precision: str, biases: bool, tokens: int) -> None:
    """So few pairs that each has a copy of its expert, more than copies at once, and more than there are copies for."""
    host, (hidden, routing) = packed(precision, biases), call(H, tokens)
    output = slots(host, precision)(hidden, routing)
    assert (output.dtype, output.shape) == (torch.bfloat16, hidden.shape)
    assert relative(output, expected(host, PLACED, hidden, routing)) < TOLERANCE
    assert 3 < 2 * PAIRS_AT_ONCE < 2 * 40


@given(
    placed=st.lists(st.integers(0, E - 1), min_size=1, max_size=E, unique=True),
    rows=st.lists(st.lists(st.integers(-1, E - 1), min_size=2, max_size=2), min_size=1, max_size=9),
    experts_at_once=st.integers(1, E),
    few=st.booleans(),
)
def test_any_placement_and_any_ids(placed: list[int], rows: list[list[int]], experts_at_once: int, few: bool) -> None:
    """Chunks without pairs, ids of no expert, an expert twice, an expert that lives elsewhere."""
    host, ids = packed("int4_g32", True), torch.tensor(rows)
    hidden, routing = call(H, len(rows))
    routing = Routing(ids=ids, gates=routing.gates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STREAMED_CHUNK_BYTES", experts_at_once * host.memory.shape[1])
        patch.setattr(module, "groups_at_once", lambda _: not few)
        truth = expected(host, placed, hidden, routing)
        seen = slots(host, "int4_g32", placed)(hidden, routing)
    assert (seen.float() - truth.float()).norm() <= TOLERANCE * truth.float().norm()


def test_what_memory_held_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grouped product leaves the rows behind its last group as they were."""

    def garbage(rows: Tensor, weights: Tensor, **options: Any) -> Tensor:
        product = product_of(rows, weights, **options)
        product[int(options["offs"][-1]) :] = torch.nan
        return product

    product_of = products.grouped_mm
    monkeypatch.setattr(products, "grouped_mm", garbage)
    monkeypatch.setattr(module, "STREAMED_CHUNK_BYTES", 1)
    host, (hidden, routing) = packed("int8", True), call(H, 40)
    experts = slots(host, "int8")
    assert relative(experts(hidden, routing), expected(host, PLACED, hidden, routing)) < TOLERANCE
    assert not experts(hidden, Routing(ids=torch.full_like(routing.ids, 1), gates=routing.gates)).any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("tokens", [1, 40])
def test_operations_and_shapes_do_not_depend_on_data(tokens: int) -> None:
    """What a captured graph may hold."""
    experts = slots(packed("int4_g32", True), "int4_g32")
    hidden, routing = call(H, tokens)
    sequences = []
    for ids in (routing.ids, torch.full_like(routing.ids, -1), torch.zeros_like(routing.ids)):
        with Operations() as operations:
            experts(hidden, Routing(ids=ids, gates=routing.gates))
        sequences.append(operations.seen)
    assert sequences[0] == sequences[1] == sequences[2]
    names = " ".join(name for name, _ in sequences[0])
    assert not any(word in names for word in ("local_scalar", "item", "nonzero", "masked_select"))


@pytest.mark.parametrize(("hidden", "ffn"), [(2048 + 128, 32), (64, 4096), (2048, 16)])
def test_strips_of_several_records(hidden: int, ffn: int) -> None:
    """Of fp8 a record has 2,048 columns."""
    host = Packed("fp8", hidden, ffn)
    unpacked = streamed(host, "fp8").layout.unpack(host.memory)
    truth = host.matrices(2)
    assert torch.equal(unpacked.gate_up[2], torch.cat([truth.gate, truth.up]).bfloat16())
    assert torch.equal(unpacked.down[2], truth.down.bfloat16())


def test_codes_that_are_no_numbers_stay_so() -> None:
    """The host has NaN for all of such a row."""
    host = Packed("fp8", 128, 128)
    plain = np.zeros((128, 132), np.uint8)
    plain[:, :4] = np.full((128, 1), 0.5, np.float32).view(np.uint8)
    gate = plain.copy()
    gate[3, 4 + 17] = 0x7F
    host.packed.write_expert_blocks(0, gate, plain, plain)
    memory = torch.from_numpy(host.packed.memory().copy())
    seen, truth = streamed(host, "fp8").layout.gate_up(memory[:1])[0], host.matrices(0).gate
    for gate_rows in (seen[:128], truth):
        assert gate_rows.isnan().any(dim=1).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("precision", FORMATS)
def test_weights_can_be_read_back(precision: str) -> None:
    host = packed(precision, True)
    experts = slots(host, precision)
    for i in PLACED:
        for one, other in zip(experts.matrices(i).tensors, host.matrices(i).tensors, strict=True):
            assert torch.equal(one, other.to(one.dtype))
    assert experts.nbytes == len(PLACED) * host.memory.shape[1]
    with pytest.raises(ValueError, match="expert 1 is not at the device"):
        experts.matrices(1)


def residents(kind: Any, host: Packed, precision: Any, transfers: Any) -> Any:
    at_device = np.isin(np.arange(E), PLACED)
    return kind(streamed(host, precision), at_device, CPU, transfers)


@pytest.mark.parametrize(("kind", "precision"), [(PackedResidents, "int4_g32"), (Bf16Residents, "bf16")])
def test_a_move_is_one_copy_of_packed_bytes(kind: Any, precision: str) -> None:
    host, transfers = Packed(precision, H, I, biases=True), Queue()
    experts = residents(kind, host, precision, transfers)
    experts.move(ExpertSwap(layer=0, incoming=1, outgoing=3))
    experts.move(ExpertSwap(layer=0, incoming=2, outgoing=0))
    assert [name for name, _ in transfers.put] == ["fork", "copy"] * 2
    assert all(to.nbytes == host.memory.shape[1] for name, to in transfers.put if isinstance(to, Tensor))
    assert not experts.arrived()
    experts.finish()
    assert experts.arrived()
    hidden, routing = call(H, 9)
    assert relative(experts.backend(hidden, routing), expected(host, [1, 2, 4], hidden, routing)) < TOLERANCE
    for i in (1, 2, 4):
        assert torch.equal(experts.backend.matrices(i).down, host.matrices(i).down.bfloat16())
    assert host.calls == 1, "of the truth"


def test_memory_of_the_slots_does_not_move() -> None:
    experts = residents(PackedResidents, host := packed("int8"), "int8", FakeDevice())
    before = experts.backend._memory.data_ptr(), experts.backend._slot_of.data_ptr()
    experts.move(ExpertSwap(layer=0, incoming=1, outgoing=3))
    assert before == (experts.backend._memory.data_ptr(), experts.backend._slot_of.data_ptr())
    assert torch.equal(experts.backend.matrices(1).down, host.matrices(1).down.bfloat16())
    with pytest.raises(ValueError, match="expert 1 cannot take the place of 3"):
        experts.move(ExpertSwap(layer=0, incoming=1, outgoing=3))


class Slow:
    """Experts of a layer that arrive when they are told to; `moved` are those that were told to come."""

    def __init__(self) -> None:
        self.backend: ExpertsBackend = DirectExperts()
        self.moved: list[ExpertSwap] = []
        self.is_there = True

    def move(self, move: ExpertSwap) -> None:
        self.moved.append(move)
        self.is_there = False

    def arrived(self) -> bool:
        return self.is_there

    def finish(self) -> None:
        self.is_there = True


def test_the_host_serves_who_comes_and_who_goes_until_the_first_has_arrived() -> None:
    slow = [Slow(), Slow()]
    model, state = tiny_spec().model, MoERuntimeState(fused=True, concurrent=False)
    operators = [
        ExpertsOperator(ExpertsPosition(layer=i, number=i, is_last=i == 1), state, original=None, fused=DirectExperts())
        for i in range(2)
    ]
    spec = PlacementSpec(policy="dynamic", ratio=0.5, every=1)
    placement = DevicePlacement(spec, model, lambda operator, _: slow[operator.position.number], CPU)
    placement.attach(operators)
    first, second = (operator.residence for operator in operators)
    assert isinstance(first, Residence) and isinstance(second, Residence)
    before = first.at_device.clone()
    hots = [int((~one.at_device).nonzero()[0]) for one in (first, second)]
    hot = hots[0]
    selected = [np.stack([np.full((30, 1), one) for one in hots])]
    placement.after_step(selected)
    (move,) = slow[0].moved
    assert move.incoming == hot
    for step in range(3):
        placement.after_step(selected)
        assert first.at_device.tolist() == [bool(held) and i != move.outgoing for i, held in enumerate(before)], step
        assert len(slow[0].moved) == 1, "nobody else comes meanwhile"
    assert placement.counters()["experts_moved"] == 0
    slow[0].is_there = True
    placement.after_step(selected)
    assert not first.at_device[hot], "one of the other layer is still on its way"
    placement.release()
    assert first.at_device[hot]
    assert first.at_device.sum() == before.sum()
    assert placement.counters()["experts_moved"] == 2


def test_layouts_of_two_formats() -> None:
    layout = PackedLayout(hidden=64, ffn=64, precision="bf16", down_precision="int8")
    assert not layout.is_bf16
    assert PackedLayout(hidden=64, ffn=64, precision="bf16", down_precision="bf16").is_bf16
