"""Selections are split by where experts live, always by the same operations on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ktbench.engine.device_placement import Residence
from ktbench.engine.placement import Move

EXPERTS = 6


@given(
    st.lists(st.booleans(), min_size=EXPERTS, max_size=EXPERTS),
    st.lists(st.lists(st.integers(-1, EXPERTS - 1), min_size=3, max_size=3), max_size=5),
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
    return torch.from_numpy(np.random.default_rng(seed).integers(-1, EXPERTS, size=(tokens, 2)))


def test_moves_change_the_same_memory_and_counts_go_on() -> None:
    residence = Residence(torch.tensor([True, False, False, True, False, False]))
    memory = residence.at_device.data_ptr(), residence.served.data_ptr()
    ids = torch.tensor([[0, 1], [3, 4]])
    residence.split(ids)
    residence.move([Move(layer=0, come=1, go=0), Move(layer=0, come=4, go=3)])
    hosts, devices = residence.split(ids)
    assert (hosts.tolist(), devices.tolist()) == ([[0, -1], [3, -1]], [[-1, 1], [-1, 4]])
    assert residence.served.tolist() == [4, 4]
    assert memory == (residence.at_device.data_ptr(), residence.served.data_ptr())


def test_the_placement_given_is_left_alone() -> None:
    given_ = torch.zeros(EXPERTS, dtype=torch.bool)
    Residence(given_).move([Move(layer=0, come=1, go=0)])
    assert not given_.any()


@torch.inference_mode()
def test_results_go_into_the_buffers_given() -> None:
    residence = Residence(torch.arange(EXPERTS) < 3)
    buffers = torch.empty((4, 2), dtype=torch.int64), torch.empty((4, 2), dtype=torch.int64)
    for seed in range(3):
        fresh, into = residence.split(random_ids(seed)), residence.split(random_ids(seed), buffers)
        assert into[0] is buffers[0]
        assert into[1] is buffers[1]
        assert all(map(torch.equal, fresh, into))


class Operations(TorchDispatchMode):
    """Names and result shapes of what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append((str(func), tuple(getattr(result, "shape", ()))))
        return result


def test_operations_and_shapes_do_not_depend_on_data() -> None:
    """What a captured graph may hold: nothing reads a value back, nothing has as many elements as a condition."""
    residence = Residence(torch.arange(EXPERTS) < 3)
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
    residence = Residence((torch.arange(EXPERTS) < 3).cuda())
    ids = torch.tensor([[0, 3], [1, 4]], device="cuda")
    buffers = torch.empty_like(ids), torch.empty_like(ids)
    residence.split(ids, buffers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        residence.split(ids, buffers)
    before = residence.served.tolist()
    residence.move([Move(layer=0, come=3, go=0)])
    graph.replay()
    assert [buffer.tolist() for buffer in buffers] == [[[0, -1], [-1, 4]], [[-1, 3], [1, -1]]]
    assert residence.served.tolist() == [count + 2 for count in before]


@pytest.mark.parametrize("at_device", [torch.zeros(3), torch.zeros((2, 3), dtype=torch.bool)])
def test_what_is_no_placement_of_a_layer_is_refused(at_device: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be bool \[experts\]"):
        Residence(at_device)
