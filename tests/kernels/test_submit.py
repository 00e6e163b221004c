"""submit and wait: calls of a team run in the order of their submission, whoever waits, or nobody."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import Batch, Case, case, forward, garbage, submit
from tests.kernels.tables import PRECISIONS, kernels

ROOT = Path(__file__).parents[2]


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_a_ticket_brings_what_forward_computes(precision, isa, team):
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    for dynamic in (False, True):
        out = garbage(of.batch)
        submit(moe, of.batch, out, isa=isa, dynamic=dynamic).wait()
        assert (out == forward(moe, of.batch, isa=isa, dynamic=dynamic)).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_several_in_flight_run_in_order(precision, team):
    """Each reads what the one before it writes."""
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    x, expected = of.batch.x_th, []
    for _ in range(6):
        x = forward(moe, Batch(x, of.batch.ids_tk, of.batch.gates_tk), isa="reference")
        expected.append(x)
    rows = [of.batch.x_th, *(garbage(of.batch) for _ in range(6))]
    tickets = [
        submit(moe, Batch(before, of.batch.ids_tk, of.batch.gates_tk), after, isa="reference", dynamic=True)
        for before, after in pairwise(rows)
    ]
    for ticket in reversed(tickets):  # the last one's turn is after all others
        ticket.wait()
    assert all((out == right).all() for out, right in zip(rows[1:], expected, strict=True))


def test_operators_of_one_team_keep_the_order_too(team, of):
    other = case("bf16", (2, 64, 96), 6, 2)
    first, second = _kernels.MoE(of.packed, team), _kernels.MoE(other.packed, team)
    middle, out = garbage(of.batch), garbage(of.batch)
    chained = Batch(middle, other.batch.ids_tk, other.batch.gates_tk)
    tickets = [submit(first, of.batch, middle, isa="reference"), submit(second, chained, out, isa="reference")]
    tickets[1].wait()
    assert (middle == forward(first, of.batch, isa="reference")).all()
    assert (out == forward(second, chained, isa="reference")).all()
    tickets[0].wait()


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
    waiters = [threading.Thread(target=ticket.wait) for ticket in tickets]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
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

    hammers = [threading.Thread(target=hammer, args=(me,)) for me in range(2)]
    for thread in hammers:
        thread.start()
    for thread in hammers:
        thread.join()
    assert not wrong


def test_a_wrong_call_is_refused_at_once_and_the_next_one_runs(team, of):
    moe = _kernels.MoE(of.packed, team)
    ids = of.batch.ids_tk.copy()
    ids[3, 1] = 4
    with pytest.raises(IndexError, match=r"expert id 4 of token 3 is not in 0\.\.3"):
        submit(moe, Batch(of.batch.x_th, ids, of.batch.gates_tk), garbage(of.batch), isa="reference")
    with pytest.raises(ValueError, match="no kernels chosen"):
        submit(moe, of.batch, garbage(of.batch))
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
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_THREAD_LIMIT": "1"},
    )
    first, second, third, fourth = done.stdout.splitlines()
    assert "1" in first and "2" in first and first == third
    assert (second, fourth) == ("waited", "checked")
