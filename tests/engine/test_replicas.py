"""Weights come back late: the order in which steps use the experts of all copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.layer import CacheColdReplicas


def uses(copies: int, experts: int, active: int, steps: int) -> list[tuple[int, int]]:
    """(copy, expert) of every use, in order."""
    backends: list[Any] = list(range(copies))
    layer = CacheColdReplicas(backends, experts)
    taken: list[tuple[Any, np.ndarray]] = [layer.take(np.arange(active)[None], active) for _ in range(steps)]
    return [(copy, expert) for copy, ids in taken for expert in ids.ravel().tolist()]


@given(st.integers(1, 4), st.integers(1, 20), st.data())
def test_no_expert_comes_back_before_the_others_were_read(copies: int, experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, experts))
    order = uses(copies, experts, active, steps=3 * copies * -(-experts // active))
    assert set(order) == {(copy, expert) for copy in range(copies) for expert in range(experts)}
    last: dict[tuple[int, int], int] = {}
    for at, use in enumerate(order):
        if use in last:
            between = set(order[last[use] + 1 : at])
            assert use not in between
            least = copies * experts - 1 if experts % active == 0 else copies * (experts - active) - 1
            assert len(between) >= least
        last[use] = at


def test_a_single_copy_is_read_in_a_ring() -> None:
    assert [expert for _, expert in uses(1, 5, 2, 5)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_ranks_keep_their_load() -> None:
    backend: Any = None
    layer = CacheColdReplicas([backend], 8)
    ranks = np.array([[0, 1], [0, 2], [0, 1]])
    for first in (0, 3, 6):
        _, ids = layer.take(ranks, 3)
        assert ids.tolist() == ((ranks + first) % 8).tolist()


def test_no_copy_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one copy"):
        CacheColdReplicas([], 8)
