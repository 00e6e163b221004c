"""A long queue on one team: calls run in the order of submission, and tickets may be waited for in any."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Batch, Case, case, forward, garbage, submit


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(st.integers(0, 4), min_size=1, max_size=24), data=st.data())
def test_a_long_queue_may_be_waited_for_in_any_order(team, calls, data):
    """Of many operators on one team; each call reads what the one before it writes."""
    sizes = [(4, 64, 64), (2, 64, 96), (3, 64, 32), (8, 64, 32), (1, 64, 128)]
    moes = [_kernels.MoE(case("int8", size, 6, 2).packed, team) for size in sizes]
    batch, expected = case("int8", sizes[0], 6, 2).batch, []
    routed = [Batch(batch.x_th, batch.ids_tk % experts, batch.gates_tk) for experts, _, _ in sizes]
    x = batch.x_th
    for which in calls:
        x = forward(moes[which], replace(routed[which], x_th=x), isa="reference")
        expected.append(x)
    rows = [batch.x_th, *(garbage(batch) for _ in calls)]
    tickets = [
        submit(moes[which], replace(routed[which], x_th=before), after, isa="reference")
        for which, (before, after) in zip(calls, pairwise(rows), strict=True)
    ]
    for turn in data.draw(st.permutations(range(len(calls)))):
        tickets[turn].wait()
        assert all(ticket.done for ticket in tickets[: turn + 1])
        assert all((out == right).all() for out, right in zip(rows[1 : turn + 2], expected, strict=False))


@settings(max_examples=20, deadline=None)
@given(deferred=st.lists(st.booleans(), min_size=2, max_size=12))
def test_what_is_deferred_is_waited_for_one_layer_later(team, deferred):
    """Immediate experts first, deferred ones right behind them; what is waited for is the immediate ones alone."""
    of = case("int8", (4, 64, 64), 6, 2)
    moe, later = _kernels.MoE(of.packed, team), None
    now, then = (forward(moe, half, isa="reference") for half in halves(of.batch))
    for defers in deferred:
        outs = [garbage(of.batch) for _ in range(2)]
        tickets = [
            submit(moe, half, out, isa="reference")
            for half, out in zip(halves(of.batch)[: 1 + defers], outs, strict=False)
        ]
        tickets[0].wait()
        assert (outs[0] == now).all()
        if later:
            later[0].wait()
            assert (later[1] == then).all()
        later = (tickets[1], outs[1]) if defers else None


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Each token's first expert, and its second."""
    first = np.array([True, False])
    return tuple(replace(batch, ids_tk=np.where(kept, batch.ids_tk, -1)) for kept in (first, ~first))


def test_done_is_known_without_waiting(cpus, of):
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:2], 100, own=True))
    out = garbage(of.batch)
    ticket = submit(moe, of.batch, out, isa="reference")
    while not ticket.done:
        pass
    assert (out == forward(moe, of.batch, isa="reference")).all()
    ticket.wait()
    assert ticket.done


def test_nothing_is_done_before_somebody_waits_where_callers_work(cpus, of):
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:2], 100))
    tickets = [submit(moe, of.batch, garbage(of.batch), isa="reference") for _ in range(3)]
    assert [ticket.done for ticket in tickets] == [False] * 3
    tickets[1].wait()
    assert [ticket.done for ticket in tickets] == [True, True, False]
