"""submit and wait: calls of a team run in the order of their submission, whoever waits, or nobody."""

import gc
import itertools
import resource
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.command import python_output
from tests.kernels.layers import Batch, Case, case, forward, garbage, submit, together
from tests.kernels.tables import PRECISIONS, kernels


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


@settings(max_examples=30, deadline=None)
@given(calls=st.lists(st.integers(0, len(PRECISIONS) - 1), min_size=1, max_size=24), data=st.data())
def test_a_long_queue_may_be_waited_for_in_any_order(team, calls, data):
    """Of many operators on one team; each call reads what the one before it writes."""
    cycle = itertools.cycle([(4, 64, 64), (2, 64, 96), (3, 64, 32), (8, 64, 32), (1, 64, 128)])
    sizes = [next(cycle) for _ in PRECISIONS]
    moes = [_kernels.MoE(case(*kind, 6, 2).packed, team) for kind in zip(PRECISIONS, sizes, strict=True)]
    batch, expected, dynamic = case("int8", sizes[0], 6, 2).batch, [], data.draw(st.booleans())
    routed = [Batch(batch.x_th, batch.ids_tk % experts, batch.gates_tk) for experts, _, _ in sizes]
    x = batch.x_th
    for which in calls:
        x = forward(moes[which], replace(routed[which], x_th=x), isa="reference")
        expected.append(x)
    rows = [batch.x_th, *(garbage(batch) for _ in calls)]
    tickets = [
        submit(moes[which], replace(routed[which], x_th=before), after, isa="reference", dynamic=dynamic)
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


def resident_bytes() -> int:
    """Now, not at the peak, which earlier tests have raised."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_fifty_thousand_submits_leave_nothing_behind(cpus):
    of = case("int8", (4, 64, 64), 2, 2)
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool(cpus[:1], 100, own=True))
    outs = [garbage(of.batch) for _ in range(10)]

    def soak(submits: int) -> None:
        for _ in range(submits // len(outs)):
            for ticket in [submit(moe, of.batch, out, isa="reference") for out in outs]:
                ticket.wait()

    soak(2_000)
    before = resident_bytes()
    soak(50_000)
    assert resident_bytes() - before < 50_000 * 100, "bytes: not even a hundred for each"
    assert moe.counters()["flops"] == 52_000 * 4 * 6 * 64 * 64


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_a_ticket_brings_what_forward_computes(precision, isa, team):
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    for dynamic in (False, True):
        out = garbage(of.batch)
        submit(moe, of.batch, out, isa=isa, dynamic=dynamic).wait()
        assert (out == forward(moe, of.batch, isa=isa, dynamic=dynamic)).all()


def test_waiting_twice_is_waiting_once(team, of):
    moe = _kernels.MoE(of.packed, team)
    ticket = submit(moe, of.batch, garbage(of.batch), isa="reference")
    ticket.wait()
    flops = moe.counters()["flops"]
    ticket.wait()
    assert moe.counters()["flops"] == flops


def test_dropping_a_ticket_waits(team, of):
    moe = _kernels.MoE(of.packed, team)
    out = garbage(of.batch)
    ticket = submit(moe, of.batch, out, isa="reference")
    del ticket
    right = out.copy()
    assert (right == forward(moe, of.batch, isa="reference")).all()


def test_a_ticket_keeps_arrays_operator_and_team_alive(cpus, of):
    expected = forward(_kernels.MoE(of.packed, _kernels.ThreadPool(cpus[:1], 0)), of.batch, isa="reference")
    for own in (False, True):
        x, out = of.batch.x_th.copy(), garbage(of.batch)
        alive = weakref.ref(x)
        moe = _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:2], 10, own=own))
        ticket = submit(moe, Batch(x, of.batch.ids_tk.copy(), of.batch.gates_tk.copy()), out, isa="reference")
        del x, moe
        gc.collect()
        assert alive() is not None
        ticket.wait()
        assert (out == expected).all()
        del ticket
        assert alive() is None


def test_routing_is_read_before_submit_returns(team, of):
    moe = _kernels.MoE(of.packed, team)
    ids, gates, out = of.batch.ids_tk.copy(), of.batch.gates_tk.copy(), garbage(of.batch)
    ticket = submit(moe, Batch(of.batch.x_th, ids, gates), out, isa="reference")
    ids[:], gates[:] = 99, np.nan
    ticket.wait()
    assert (out == forward(moe, of.batch, isa="reference")).all()


def test_another_thread_may_wait(team, of):
    moe = _kernels.MoE(of.packed, team)
    outs = [garbage(of.batch) for _ in range(4)]
    tickets = [submit(moe, of.batch, out, isa="reference") for out in outs]
    together(lambda index: tickets[index].wait(), 4)
    expected = forward(moe, of.batch, isa="reference")
    assert all((out == expected).all() for out in outs)


@pytest.mark.parametrize(("precision", "isa"), kernels("bf16", "int8"))
def test_two_python_threads_submit_at_once(precision, isa, team):
    of = [case(precision, sizes, tokens, 2) for sizes, tokens in [((4, 96, 64), 3), ((3, 64, 128), 30)]]
    moes = [_kernels.MoE(layer.packed, team) for layer in of]
    expected = [forward(moe, layer.batch, isa=isa) for moe, layer in zip(moes, of, strict=True)]
    wrong = []

    def hammer(me: int) -> None:
        for turn in range(5):
            outs = [garbage(of[me].batch) for _ in range(3)]
            for ticket in [submit(moes[me], of[me].batch, out, isa=isa, dynamic=bool(turn % 2)) for out in outs]:
                ticket.wait()
            wrong.extend((me, turn) for out in outs if (out != expected[me]).any())

    together(hammer, 2)
    assert not wrong


def test_a_wrong_call_is_refused_at_once_and_the_next_one_runs(team, of):
    moe = _kernels.MoE(of.packed, team)
    ids = of.batch.ids_tk.copy()
    ids[3, 1] = 4
    with pytest.raises(IndexError, match=r"expert id 4 of token 3 is not in 0\.\.3"):
        submit(moe, Batch(of.batch.x_th, ids, of.batch.gates_tk), garbage(of.batch), isa="reference")
    out = garbage(of.batch)
    submit(moe, of.batch, out, isa="reference").wait()
    assert (out == forward(moe, of.batch, isa="reference")).all()


def test_what_a_thread_of_the_team_throws_comes_back_to_the_waiter():
    """An OpenMP runtime that grants fewer threads than the team was promised."""
    program = """
import ctypes
import numpy as np
import torch
from ktbench._kernels import MoE, OpenMPTeam, PackedExperts
moe = MoE(PackedExperts(2, 32, 32), OpenMPTeam(2))
x = np.zeros((3, 32), np.uint16)
call = (x, np.zeros((3, 1), np.int64), np.ones((3, 1), np.float32), x.copy())
ticket = moe.submit(*call, isa="reference")
for attempt in range(2):
    try: ticket.wait(); print("waited")
    except RuntimeError as error: print(error)
moe.submit(*call, isa="reference")
host = moe.host_call(*call, isa="reference")
for address in (host.submit, host.wait):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(host.data)
for attempt in range(2):
    try: host.check(); print("checked")
    except RuntimeError as error: print(error)
"""
    first, second, third, fourth = python_output(program, OMP_THREAD_LIMIT="1").splitlines()
    assert "1" in first and "2" in first and first == third
    assert (second, fourth) == ("waited", "checked")
