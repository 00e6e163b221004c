"""Experts in slots against float32 arithmetic of the same weights, whoever of them lives at the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ktbench.engine.cuda import experts as module
from ktbench.engine.cuda.experts import SlotExperts, gathered_product, grouped_product
from ktbench.engine.forms import ExpertMatrices, ExpertsForm, Glu
from ktbench.engine.observe import float32_output
from ktbench.engine.routing import Routing
from tests.engine.cuda.fakes import Operations

E, H, I, K = 6, 32, 16, 3  # noqa: E741
CPU = torch.device("cpu")
GPT_OSS = Glu(alpha=1.702, limit=0.5, offset=1.0)
FORMS = {
    "plain": ExpertsForm(experts=E, hidden=H, ffn=I),
    "gelu": ExpertsForm(experts=E, hidden=H, ffn=I, glu=Glu(activation="gelu_tanh")),
    "transposed": ExpertsForm(experts=E, hidden=H, ffn=I, transposed=True),
    "gpt_oss": ExpertsForm(experts=E, hidden=H, ffn=I, transposed=True, interleaved=True, biases=True, glu=GPT_OSS),
}


class Store:
    """Experts of a form; each call overwrites what the call before gave, as a store may."""

    def __init__(self, form: ExpertsForm, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        sizes = {"gate_up_proj": form.gate_up_shape, "down_proj": (E, I, H) if form.transposed else (E, H, I)}
        if form.biases:
            sizes |= {"gate_up_proj_bias": (E, 2 * I), "down_proj_bias": (E, H)}
        self.form = form
        self.parameters = {key: (torch.randn(size, generator=draw) / 4).bfloat16() for key, size in sizes.items()}
        self._now = {key: torch.empty_like(held[0]) for key, held in self.parameters.items()}

    def __call__(self, i: int) -> ExpertMatrices:
        for key, held in self.parameters.items():
            self._now[key].copy_(held[i])
        return self.form.split(self._now)

    def kept(self, i: int) -> ExpertMatrices:
        return self.form.split({key: held[i] for key, held in self.parameters.items()})


def call(tokens: int, seed: int = 1) -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=draw)[:K] for _ in range(tokens)])
    hidden = torch.randn(tokens, H, generator=draw).bfloat16()
    return hidden, Routing(ids=ids, gates=torch.rand(tokens, K, generator=draw))


def expected(store: Store, placed: list[int], hidden: Tensor, routing: Routing) -> Tensor:
    here = torch.isin(routing.ids, torch.tensor(placed))
    only = Routing(ids=routing.ids.clamp(min=0), gates=routing.gates * here)
    return float32_output(store.kept, hidden.float(), only)


def assert_close(seen: Tensor, truth: Tensor) -> None:
    assert seen.dtype == torch.bfloat16
    assert (seen.float() - truth).norm() <= 0.01 * truth.norm()


@pytest.fixture(params=["grouped", "gathered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to multiply, whatever the device."""
    monkeypatch.setattr(module, "groups_at_once", lambda _: request.param == "grouped")
    return str(request.param)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_form_against_float32(way: str, form: str, tokens: int) -> None:
    store, placed = Store(FORMS[form]), [4, 1, 3]
    experts = SlotExperts(E, placed, store, CPU)
    hidden, routing = call(tokens)
    output = experts(hidden, routing)
    assert_close(output, expected(store, placed, hidden, routing))
    assert torch.equal(output, experts.start(hidden, routing)())


@given(
    st.lists(st.integers(0, E - 1), min_size=1, max_size=E, unique=True),
    st.lists(st.lists(st.integers(-1, E - 1), min_size=K, max_size=K), min_size=1, max_size=7),
    st.sampled_from([grouped_product, gathered_product]),
)
def test_any_placement_and_any_ids(placed: list[int], rows: list[list[int]], way: Any) -> None:
    """Ids of no expert among them, an expert twice, an expert that lives elsewhere."""
    store, ids = Store(FORMS["plain"]), torch.tensor(rows)
    experts = SlotExperts(E, placed, store, CPU)
    hidden, routing = call(len(rows))
    routing = Routing(ids=ids, gates=routing.gates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 0 if way is grouped_product else 10**6)
        experts._groups = False
        assert_close(experts(hidden, routing), expected(store, placed, hidden, routing))


def test_no_expert_adds_exactly_nothing_even_beside_what_memory_held(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grouped product leaves the rows of no expert as they were in memory."""

    def garbage(rows: Tensor, weights: Tensor, **options: Any) -> Tensor:
        product = product_of(rows, weights, **options)
        product[int(options["offs"][-1]) :] = torch.nan
        return product

    product_of = module.grouped_mm
    monkeypatch.setattr(module, "grouped_mm", garbage)
    experts = SlotExperts(E, [2], Store(FORMS["gpt_oss"]), CPU)
    hidden, routing = call(4)
    absent = Routing(ids=torch.where(routing.ids == 2, -1, routing.ids), gates=routing.gates)
    assert (experts(hidden, absent) == 0).all()


def test_many_pairs_are_grouped_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "groups_at_once", lambda _: False)
    monkeypatch.setattr(module, "gathered_product", lambda *_: pytest.fail("copies weights for many pairs"))
    store = Store(FORMS["plain"])
    hidden, routing = call(40)
    assert_close(SlotExperts(E, [0, 5], store, CPU)(hidden, routing), expected(store, [0, 5], hidden, routing))


@pytest.mark.parametrize("form", ["plain", "gpt_oss"])
def test_moves_change_weights_in_place(form: str) -> None:
    store = Store(FORMS[form])
    experts = SlotExperts(E, [4, 1], store, CPU)
    memory = experts._gate_up.data_ptr(), experts._down.data_ptr(), experts._slot_of.data_ptr()
    experts.move(0, 4, store(0))
    experts.move(4, 1, store(4))
    hidden, routing = call(5)
    assert_close(experts(hidden, routing), expected(store, [0, 4], hidden, routing))
    assert memory == (experts._gate_up.data_ptr(), experts._down.data_ptr(), experts._slot_of.data_ptr())


@pytest.mark.parametrize("form", FORMS)
def test_weights_can_be_read_back(form: str) -> None:
    store = Store(FORMS[form])
    experts = SlotExperts(E, [4, 1], store, CPU)
    for i in (4, 1):
        held, kept = experts.matrices(i), store.kept(i)
        assert held.glu == kept.glu
        for one, other in zip(held.tensors, kept.tensors, strict=True):
            assert torch.equal(one, other.to(one.dtype))


def test_bytes_of_the_slots() -> None:
    assert SlotExperts(E, [4, 1], Store(FORMS["plain"]), CPU).nbytes == 2 * 3 * H * I * 2
    assert SlotExperts(E, [4], Store(FORMS["gpt_oss"]), CPU).nbytes == 3 * H * I * 2 + 4 * (2 * I + H)


def test_operations_and_shapes_do_not_depend_on_data(way: str) -> None:
    """What a captured graph may hold: nothing reads a value back, nothing has as many elements as a condition."""
    experts = SlotExperts(E, [4, 1, 3], Store(FORMS["gpt_oss"]), CPU)
    hidden, routing = call(5)
    sequences = []
    for ids in (routing.ids, torch.full_like(routing.ids, -1), torch.zeros_like(routing.ids)):
        with Operations() as operations:
            experts(hidden, Routing(ids=ids, gates=routing.gates))
        sequences.append(operations.seen)
    assert sequences[0] == sequences[1] == sequences[2]
    names = " ".join(name for name, _ in sequences[0])
    assert not any(word in names for word in ("local_scalar", "item", "nonzero", "masked_select"))


@pytest.mark.parametrize("placed", [[], [1, 1]])
def test_no_experts_or_one_twice_are_refused(placed: list[int]) -> None:
    with pytest.raises(ValueError, match="must be one or more, each once"):
        SlotExperts(E, placed, Store(FORMS["plain"]), CPU)


def test_moves_that_cannot_be_are_refused() -> None:
    store = Store(FORMS["plain"])
    experts = SlotExperts(E, [4, 1], store, CPU)
    for incoming, outgoing in ((1, 4), (0, 2)):
        with pytest.raises(
            ValueError, match=rf"expert {incoming} cannot take the place of {outgoing}: at the device are \[1, 4\]"
        ):
            experts.move(incoming, outgoing, store(incoming))
    with pytest.raises(ValueError, match=r"expert 0 is not at the device: there are \[1, 4\]"):
        experts.matrices(0)
