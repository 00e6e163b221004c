"""Where experts are placed: by each policy's definition, by what was recorded, and as selections are split by it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.placement import DynamicPlacement, ExpertSwap, place_experts
from ktbench.engine.routing import Residence
from ktbench.engine.workload.recorded import ActivationProfile, Architecture, count_selections
from ktbench.spec.engine import PlacementSpec, Policy
from ktbench.spec.shape import MoEShape, moe_shape
from tests.engine.cuda.fakes import Operations
from tests.tiny import CONFIG, tiny_spec

TRACES = Path(__file__).parents[3] / "shared" / "data" / "routing_traces"
REAL = pytest.mark.skipif(not TRACES.is_dir(), reason="no shared data folder next to this checkout")
POLICIES: tuple[Policy, ...] = ("uniform", "frequency", "front_loading", "random", "dynamic")
Ids = NDArray[np.integer[Any]]


def shape_of(layers: int, experts: int, top_k: int = 2) -> MoEShape:
    sizes = {"num_hidden_layers": layers, "num_experts": experts, "num_experts_per_tok": top_k}
    return moe_shape(CONFIG | sizes)


def spec(policy: Policy, ratio: float, seed: int = 0) -> PlacementSpec:
    return PlacementSpec(policy=policy, ratio=ratio, seed=seed, profile="recorded" if policy == "frequency" else None)


def profile(counts: NDArray[np.int64]) -> ActivationProfile:
    architecture = replace(Architecture.of(tiny_spec().model), experts=counts.shape[1])
    return ActivationProfile(model="tiny", architecture=architecture, counts=counts, tokens=1, source="")


def random_counts(shape: MoEShape, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 50, size=(shape.moe_layers, shape.experts))


@given(st.sampled_from(POLICIES), st.integers(1, 5), st.integers(4, 20), st.floats(0.3, 1), st.integers(0, 3))
def test_the_ratio_of_all_experts_is_placed(policy: Policy, layers: int, experts: int, ratio: float, seed: int) -> None:
    shape = shape_of(layers, experts)
    placed = place_experts(spec(policy, ratio, seed), shape, profile(random_counts(shape)))
    assert placed.dtype == np.bool_
    assert placed.shape == (layers, experts)
    assert placed.sum() == round(ratio * layers * experts)
    per_layer = placed.sum(axis=1)
    if policy in ("uniform", "dynamic"):
        assert per_layer.max() - per_layer.min() <= 1
        assert all(one >= other for one, other in pairwise(per_layer))
    if policy == "front_loading":
        full, rest = divmod(int(placed.sum()), experts)
        assert per_layer.tolist() == ([experts] * full + [rest] + [0] * layers)[:layers]


@pytest.mark.parametrize("policy", ["uniform", "front_loading", "random", "dynamic"])
def test_the_seed_decides_where_nothing_is_known(policy: Policy) -> None:
    shape = shape_of(3, 40)
    placed = [place_experts(spec(policy, 0.5, seed), shape) for seed in (0, 0, 1)]
    assert np.array_equal(placed[0], placed[1])
    assert not np.array_equal(placed[0], placed[2])


def test_random_is_not_uniform() -> None:
    assert len(set(place_experts(spec("random", 0.5), shape_of(8, 40)).sum(axis=1).tolist())) > 2


def test_frequency_takes_the_highest_counts_of_the_whole_model() -> None:
    shape = shape_of(4, 10)
    counts = random_counts(shape)
    placed = place_experts(spec("frequency", 0.35), shape, profile(counts))
    assert counts[placed].min() >= counts[~placed].max()
    assert len(set(placed.sum(axis=1).tolist())) > 1


def test_of_equal_counts_the_earlier_layer_and_the_lower_id_are_placed() -> None:
    placed = place_experts(spec("frequency", 0.5), shape_of(2, 4), profile(np.array([[1, 1, 1, 1], [9, 1, 1, 9]])))
    assert placed.tolist() == [[True, True, False, False], [True, False, False, True]]


def test_host_places_none() -> None:
    assert not place_experts(PlacementSpec(), shape_of(2, 8)).any()


def test_less_than_one_expert_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.placement\.ratio=0\.01: is less than one of 16 experts"):
        place_experts(spec("uniform", 0.01), shape_of(2, 8))


@pytest.mark.parametrize("given_", [None, profile(np.ones((3, 8), dtype=np.int64))])
def test_frequency_needs_a_profile_of_these_layers(given_: ActivationProfile | None) -> None:
    with pytest.raises(ValueError, match=r"needs a profile of counts \[2, 8\], there is"):
        place_experts(spec("frequency", 0.5), shape_of(2, 8), given_)


# Routing whose truth is known: zipf over a hidden order of the experts, which may change.
LAYERS, EXPERTS, TOP_K, RATIO = 3, 64, 6, 0.25


def zipf_ids(rng: np.random.Generator, tokens: int, order: NDArray[np.integer[Any]], exponent: float = 1.0) -> Ids:
    keys = -exponent * np.log(1.0 + order) + rng.gumbel(size=(tokens, len(order)))
    return np.argsort(-keys, axis=1)[:, :TOP_K]


def follow(placement: DynamicPlacement, steps: list[list[Ids]]) -> NDArray[np.float64]:
    """Hit rate of each step, which is one call per layer."""
    rates = np.zeros(len(steps))
    for number, step in enumerate(steps):
        rates[number] = np.mean([placement.at_device[layer][ids].mean() for layer, ids in enumerate(step)])
        for layer, ids in enumerate(step):
            placement.note(layer, ids)
        placement.moves(number + 1)
    return rates


def drifting(changes: int, steps: int, tokens: int = 1, exponent: float = 1.0) -> list[list[list[Ids]]]:
    """For each stretch between changes its steps; every layer has an order of its own."""
    rng = np.random.default_rng(3)
    stretches = []
    for _ in range(changes):
        orders = [rng.permutation(EXPERTS) for _ in range(LAYERS)]
        stretches.append([[zipf_ids(rng, tokens, order, exponent) for order in orders] for _ in range(steps)])
    return stretches


def dynamic(every: int = 8) -> DynamicPlacement:
    placed = place_experts(spec("dynamic", RATIO), shape_of(LAYERS, EXPERTS, TOP_K))
    return DynamicPlacement(placed, every=every)


def oracle_rate(steps: list[list[Ids]]) -> float:
    """Hit rate of the best fixed choice of RATIO of each layer, known afterwards."""
    rates = []
    for layer in range(LAYERS):
        counts = np.sort(count_selections(np.concatenate([step[layer] for step in steps]), EXPERTS))
        rates.append(counts[-int(RATIO * EXPERTS) :].sum() / counts.sum())
    return float(np.mean(rates))


@pytest.mark.parametrize("tokens", [1, 16])
def test_dynamic_comes_near_the_best_choice_and_follows_a_change(tokens: int) -> None:
    placement = dynamic()
    for steps in drifting(changes=2, steps=1200, tokens=tokens):
        rates = follow(placement, steps)
        assert rates[:8].mean() < 0.45
        assert rates[600:].mean() > 0.93 * oracle_rate(steps[600:])


def test_equally_hot_experts_stay_where_they_are() -> None:
    """Without hysteresis half of all would trade places again and again."""
    placement = dynamic()
    moved = 0
    for number, step in enumerate(drifting(changes=1, steps=800, exponent=0.0)[0]):
        for layer, ids in enumerate(step):
            placement.note(layer, ids)
        moved += len(placement.moves(number + 1))
    assert moved < 0.1 * 800 * LAYERS / 8 * RATIO * EXPERTS


def test_moves_come_every_so_many_steps_and_are_carried_out() -> None:
    placement = dynamic(every=4)
    before = placement.at_device.copy()
    moved = []
    for number, step in enumerate(drifting(changes=1, steps=40, tokens=8)[0], start=1):
        for layer, ids in enumerate(step):
            placement.note(layer, ids)
        moves = placement.moves(number)
        assert len(moves) <= (LAYERS if number % 4 == 0 else 0)
        for move in moves:
            assert before[move.layer, move.outgoing]
            assert not before[move.layer, move.incoming]
            before[move.layer, move.incoming], before[move.layer, move.outgoing] = True, False
        moved.append(len(moves))
        assert np.array_equal(placement.at_device, before)
    assert max(moved) == LAYERS
    assert (placement.at_device.sum(axis=1) == RATIO * EXPERTS).all()


def test_the_swaps_that_gain_most_come_first_and_only_within_a_layer() -> None:
    at_device = np.array([[True, False, False, False], [False, True, False, False]])
    placement = DynamicPlacement(at_device, every=1)
    placement.note(0, np.repeat([[1, 2]], 4, axis=0))
    placement.note(1, np.repeat([[3, 2]], 9, axis=0))
    first, second = placement.moves(1)
    assert (first.layer, first.incoming, first.outgoing) in {(1, 2, 1), (1, 3, 1)}
    assert (second.layer, second.outgoing) == (0, 0)
    assert at_device[0, 0]


def test_no_expert_is_not_counted_and_nothing_moves_unseen() -> None:
    placement = dynamic(every=1)
    placement.note(0, np.full((20, 4), -1))
    assert placement.moves(1) == []
    everyone = DynamicPlacement(np.ones((1, 4), dtype=np.bool_), every=1)
    everyone.note(0, np.array([[1, 2]]))
    assert everyone.moves(1) == []


def traces() -> list[Any]:
    """Ids [tokens, layers, k] of real models, token by token."""
    named = [("gpt_oss_20b_decode", "experts", 32)]
    named += [("deepseek_v2_lite_esft", f"{task}_experts", 64) for task in ("intent", "law", "summary", "translation")]
    return [pytest.param(*trace, id=trace[1]) for trace in named]


@REAL
@pytest.mark.parametrize(("file", "array", "experts"), traces())
def test_what_was_recorded_and_what_is_followed_beat_blind_choices_on_real_routing(
    file: str, array: str, experts: int
) -> None:
    """A profile of the first half serves the second; dynamic sees 1000 tokens of that, one at a time."""
    with np.load(TRACES / f"{file}.npz") as content:
        ids = content[array]
    half, layers = len(ids) // 2, range(ids.shape[1])
    first = np.stack([count_selections(ids[:half, layer], experts) for layer in layers])
    second = np.stack([count_selections(ids[half:, layer], experts) for layer in layers])
    shape = shape_of(len(layers), experts)
    rates = {
        policy: second[place_experts(spec(policy, 0.25), shape, profile(first))].sum() / second.sum()
        for policy in POLICIES
    }
    assert rates["frequency"] > 1.5 * max(rates["uniform"], rates["random"], rates["front_loading"])
    placement = DynamicPlacement(place_experts(spec("dynamic", 0.25), shape), every=8)
    steps = [[ids[token, layer][None] for layer in layers] for token in range(half, half + 1000)]
    assert follow(placement, steps).mean() > 1.3 * rates["uniform"]


LAYER_EXPERTS = 6


@given(
    st.lists(st.booleans(), min_size=LAYER_EXPERTS, max_size=LAYER_EXPERTS),
    st.lists(st.lists(st.integers(-1, LAYER_EXPERTS - 1), min_size=3, max_size=3), max_size=5),
)
def test_every_selection_is_served_once_by_who_holds_the_expert(at_device: list[bool], rows: list[list[int]]) -> None:
    ids = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
    residence = Residence(torch.tensor(at_device))
    hosts, devices = residence.split(ids)
    assert hosts.dtype == devices.dtype == torch.int64
    assert hosts.tolist() == [[-1 if i < 0 or at_device[i] else i for i in row] for row in rows]
    assert devices.tolist() == [[i if i >= 0 and at_device[i] else -1 for i in row] for row in rows]
    assert residence.served.tolist() == [int((hosts >= 0).sum()), int((devices >= 0).sum())]


def random_ids(seed: int, tokens: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(-1, LAYER_EXPERTS, size=(tokens, 2)))


def test_moves_change_the_same_memory_and_counts_go_on() -> None:
    residence = Residence(torch.tensor([True, False, False, True, False, False]))
    memory = residence.at_device.data_ptr(), residence.served.data_ptr()
    ids = torch.tensor([[0, 1], [3, 4]])
    residence.split(ids)
    for incoming, outgoing in ((1, 0), (4, 3)):
        residence.evict(outgoing)
        residence.admit(incoming)
    hosts, devices = residence.split(ids)
    assert (hosts.tolist(), devices.tolist()) == ([[0, -1], [3, -1]], [[-1, 1], [-1, 4]])
    assert residence.served.tolist() == [4, 4]
    assert memory == (residence.at_device.data_ptr(), residence.served.data_ptr())


def test_the_placement_given_is_left_alone() -> None:
    given_ = torch.zeros(LAYER_EXPERTS, dtype=torch.bool)
    Residence(given_).admit(1)
    assert not given_.any()


@torch.inference_mode()
def test_results_go_into_the_buffers_given() -> None:
    residence = Residence(torch.arange(LAYER_EXPERTS) < 3)
    buffers = torch.empty((4, 2), dtype=torch.int64), torch.empty((4, 2), dtype=torch.int64)
    for seed in range(3):
        fresh, into = residence.split(random_ids(seed)), residence.split(random_ids(seed), buffers)
        assert into[0] is buffers[0]
        assert into[1] is buffers[1]
        assert all(map(torch.equal, fresh, into))


def test_operations_and_shapes_do_not_depend_on_data() -> None:
    """What a captured graph may hold: nothing reads a value back, nothing has as many elements as a condition."""
    residence = Residence(torch.arange(LAYER_EXPERTS) < 3)
    sequences = []
    for ids in (random_ids(0), torch.full((4, 2), -1), torch.zeros((4, 2), dtype=torch.int64)):
        with Operations() as operations:
            residence.split(ids)
        sequences.append(operations.seen)
    assert sequences[0] == sequences[1] == sequences[2]
    names = " ".join(name for name, _ in sequences[0])
    assert not any(word in names for word in ("local_scalar", "item", "nonzero", "masked_select", "_to_copy"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_split_sees_moves() -> None:
    residence = Residence((torch.arange(LAYER_EXPERTS) < 3).cuda())
    ids = torch.tensor([[0, 3], [1, 4]], device="cuda")
    buffers = torch.empty_like(ids), torch.empty_like(ids)
    residence.split(ids, buffers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        residence.split(ids, buffers)
    before = residence.served.tolist()
    residence.move(ExpertSwap(layer=0, incoming=3, outgoing=0))
    graph.replay()
    assert [buffer.tolist() for buffer in buffers] == [[[0, -1], [-1, 4]], [[-1, 3], [1, -1]]]
    assert residence.served.tolist() == [count + 2 for count in before]


@pytest.mark.parametrize("at_device", [torch.zeros(3), torch.zeros((2, 3), dtype=torch.bool)])
def test_what_is_no_placement_of_a_layer_is_refused(at_device: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be bool \[experts\]"):
        Residence(at_device)
