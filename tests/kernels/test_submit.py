"""Calls submitted and waited for, in order of submission: from Python and as C functions for cudaLaunchHostFunc."""

import gc
import itertools
import resource
import weakref
from collections.abc import Hashable, Iterable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.command import python_output
from tests.drawing import covering, examples
from tests.kernels.layers import Batch, Call, Case, HostFunction, case, forward, garbage, submit, together
from tests.kernels.tables import PRECISIONS, few_kernels, kernels, quantises_activations

FORMS = ["submit", "prepare", "host_call"]


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


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


@examples(8)
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


def test_nothing_is_done_before_somebody_waits_where_callers_work(cpus, of):
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:2], 100))
    tickets = [submit(moe, of.batch, garbage(of.batch), isa="reference") for _ in range(3)]
    assert [ticket.done for ticket in tickets] == [False] * 3
    tickets[1].wait()
    assert [ticket.done for ticket in tickets] == [True, True, False]


def resident_bytes() -> int:
    """Now, not at the peak, which earlier tests have raised."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("submits", [5_000, pytest.param(50_000, marks=pytest.mark.thorough)])
def test_thousands_of_submits_leave_nothing_behind(submits, cpus):
    of = case("int8", (4, 64, 64), 2, 2)
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool(cpus[:1], 100, own=True))
    outs = [garbage(of.batch) for _ in range(10)]

    def soak(count: int) -> None:
        for _ in range(count // len(outs)):
            for ticket in [submit(moe, of.batch, out, isa="reference") for out in outs]:
                ticket.wait()

    soak(1_000)
    before = resident_bytes()
    soak(submits)
    assert resident_bytes() - before < submits * 100, "bytes: not even a hundred for each"
    assert moe.counters()["flops"] == (1_000 + submits) * 4 * 6 * 64 * 64


def met_by_a_call(form: str, precision: str, isa: str) -> Iterable[Hashable]:
    return (precision, isa, (form, quantises_activations(precision, isa)))


@pytest.mark.parametrize(
    ("form", "precision", "isa"),
    covering(product(FORMS, kernels()), met_by_a_call),
)
def test_each_call_computes_what_its_arrays_hold_then(precision, isa, form, team):
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    for dynamic in (False, True):
        call = Call(form, moe, of.batch, isa=isa, dynamic=dynamic)
        for shift in range(3):
            call.batch.x_th[:] = np.roll(call.batch.x_th, shift, 0)
            call.batch.ids_tk[:] = (call.batch.ids_tk + shift) % 4
            call.batch.gates_tk[:] *= 0.5
            call.out[:] = garbage(call.batch)
            (call.made.forward if form == "prepare" and shift == 1 else call.run)()
            assert (call.out == call.expected()).all()


@pytest.mark.parametrize("form", FORMS)
def test_routing_is_read_before_submit_returns(team, of, form):
    call = Call(form, _kernels.MoE(of.packed, team), of.batch, isa="reference")
    expected = call.expected()
    call.submit()
    call.batch.ids_tk[:], call.batch.gates_tk[:] = 99, np.nan
    call.wait()
    assert (call.out == expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_call_keeps_arrays_operator_and_team_alive_and_waits_when_dropped(cpus, of, form):
    for own in (False, True):
        call = Call(
            form, _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:2], 10, own=own)), of.batch, isa="reference"
        )
        expected, alive = call.expected(), weakref.ref(call.batch.x_th)
        call.submit()
        del call.batch, call.moe
        gc.collect()
        assert alive() is not None
        del call.made, call.handed
        right = call.out.copy()
        assert alive() is None and (right == expected).all()


@pytest.mark.parametrize(("form", "waiting"), [("submit", 4), ("prepare", 3), ("host_call", 1)])
def test_other_threads_may_submit_and_wait(team, of, form, waiting):
    call, seen = Call(form, _kernels.MoE(of.packed, team), of.batch, isa="reference"), []
    expected = call.expected()
    for _ in range(20):
        call.out[:] = garbage(of.batch)
        together(lambda _: call.submit(), 1)
        together(lambda _: (call.wait(), seen.append(call.out.copy())), waiting)
    assert len(seen) == 20 * waiting and all((out == expected).all() for out in seen)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_id_is_refused_and_the_next_call_runs(team, of, form):
    call = Call(form, _kernels.MoE(of.packed, team), of.batch, isa="reference")
    call.batch.ids_tk[2, 1] = 4
    for _ in range(2):
        with pytest.raises(IndexError, match=r"expert id 4 of token 2 is not in 0\.\.3"):
            call.run()
    if form == "prepare":
        with pytest.raises(IndexError, match=r"expert id 4 of token 2 is not in 0\.\.3"):
            call.made.forward()
    elif form == "host_call":
        call.made.check()
    assert (call.out == garbage(of.batch)).all(), "nothing was computed"
    call.batch.ids_tk[2, 1] = 3
    assert (call.run() == call.expected()).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["submit", "prepare"])
def test_done_needs_no_wait_where_the_pool_is_its_own(cpus, of, form, threads):
    moe = _kernels.MoE(of.packed, _kernels.ThreadPool((cpus * 2)[:threads], 50, own=True))
    call = Call(form, moe, of.batch, isa="reference")
    call.submit()
    while not call.made.done:
        pass
    assert (call.out == call.expected()).all()
    call.wait()
    assert call.made.done


def test_waiting_twice_is_waiting_once(team, of):
    moe = _kernels.MoE(of.packed, team)
    ticket = submit(moe, of.batch, garbage(of.batch), isa="reference")
    ticket.wait()
    flops = moe.counters()["flops"]
    ticket.wait()
    assert moe.counters()["flops"] == flops


@pytest.mark.parametrize(("precision", "isa"), few_kernels("bf16", "int8"))
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


def test_two_calls_interleave_as_graph_nodes_do(team, of):
    moe = _kernels.MoE(of.packed, team)
    first, second = (Call("host_call", moe, of.batch, isa="reference") for _ in range(2))
    second.batch.x_th[:] = np.roll(of.batch.x_th, 1, 0)
    for host in (first, second):
        host.submit()
    for host in (first, second):
        host.wait()
        assert (host.out == host.expected()).all()


def test_a_wait_adds_what_came_late_from_the_layer_before(team, of):
    moe = _kernels.MoE(of.packed, team)
    due, late, following = (Call("host_call", moe, of.batch, isa="reference") for _ in range(3))
    late.batch.x_th[:] = np.roll(of.batch.x_th, 1, 0)
    following.batch.gates_tk[:] *= -0.3
    first = _kernels.HandOver(due.made, deferred=late.made)
    second = _kernels.HandOver(following.made, previous=late.made)
    for handed in (first, second):
        for function in (handed.submit, handed.wait):
            HostFunction(function)(handed.data)
    for call in (due, late, following):
        call.made.check()
    assert (due.out == due.expected()).all() and (late.out == late.expected()).all()
    parts = [torch.from_numpy(call.expected()).view(torch.bfloat16) for call in (following, late)]
    assert torch.equal(torch.from_numpy(following.out).view(torch.bfloat16), parts[0] + parts[1])


def test_outputs_that_are_added_have_one_size(team, of):
    moe, batch = _kernels.MoE(of.packed, team), of.batch
    fewer = Batch(batch.x_th[:1], batch.ids_tk[:1], batch.gates_tk[:1])
    calls = [Call("host_call", moe, one, isa="reference").made for one in (batch, fewer)]
    with pytest.raises(ValueError, match="size"):
        _kernels.HandOver(calls[0], previous=calls[1])


def test_submitting_again_waits_for_the_call_before(team, of):
    moe = _kernels.MoE(of.packed, team)
    host = Call("host_call", moe, of.batch, isa="reference")
    for _ in range(5):
        host.submit()
    host.wait()
    assert (host.out == host.expected()).all()


def test_waiting_before_submitting_is_an_error(team, of):
    host = Call("host_call", _kernels.MoE(of.packed, team), of.batch, isa="reference")
    with pytest.raises(RuntimeError, match="wait before submit"):
        host.wait()


def test_too_few_threads_for_the_domains_is_an_error(cpus):
    split = case("bf16", (2, 64, 128), 3, 1, domains=2)
    moe = _kernels.MoE(split.packed, _kernels.ThreadPool(cpus[:1], 0))
    host = Call("host_call", moe, split.batch, isa="reference", numa=True)
    host.submit()
    with pytest.raises(ValueError, match="2 domains need as many threads"):
        host.made.check()


def test_one_call_at_most_is_outstanding(team, of):
    own = Call("prepare", _kernels.MoE(of.packed, team), of.batch, isa="reference")
    own.made.submit()
    for again in (own.made.submit, own.made.forward):
        with pytest.raises(RuntimeError, match="the call before has not been waited for"):
            again()
    own.made.wait()
    assert (own.out == own.expected()).all()
    own.made.forward()


def test_waiting_for_nothing_returns(team, of):
    own = Call("prepare", _kernels.MoE(of.packed, team), of.batch, isa="reference")
    own.made.wait()
    assert own.made.done and (own.out == garbage(of.batch)).all()
    own.made.forward()
    own.made.wait()
    assert own.made.done


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["submit", "wait", "forward"])), max_size=40))
def test_any_interleaving_is_refused_or_right(team, steps):
    of = case("int8", (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    owns = [
        Call("prepare", moe, Batch(np.roll(of.batch.x_th, i, 0), of.batch.ids_tk, of.batch.gates_tk), isa="reference")
        for i in range(5)
    ]
    expected, outstanding = [own.expected() for own in owns], set[int]()
    for which, step in steps:
        own = owns[which]
        if step != "wait" and which in outstanding:
            with pytest.raises(RuntimeError):
                getattr(own.made, step)()
            continue
        getattr(own.made, step)()
        (outstanding.add if step == "submit" else outstanding.discard)(which)
        if step != "submit" and not np.array_equal(own.out, garbage(of.batch)):
            assert (own.out == expected[which]).all()
            own.out[:] = garbage(of.batch)
    for own in owns:
        own.made.wait()


def test_what_a_thread_of_the_team_throws_comes_back_to_the_waiter():
    """An OpenMP runtime that grants fewer threads than the team was promised."""
    program = """
import ctypes
import numpy as np
import torch
from ktbench._kernels import HandOver, MoE, OpenMPTeam, PackedExperts
moe = MoE(PackedExperts(2, 32, 32), OpenMPTeam(2))
x = np.zeros((3, 32), np.uint16)
call = (x, np.zeros((3, 1), np.int64), np.ones((3, 1), np.float32), x.copy())
ticket = moe.submit(*call, isa="reference")
for attempt in range(2):
    try: ticket.wait(); print("waited")
    except RuntimeError as error: print(error)
moe.submit(*call, isa="reference")
host = moe.host_call(*call, isa="reference")
handed = HandOver(host)
for address in (handed.submit, handed.wait):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(handed.data)
for attempt in range(2):
    try: host.check(); print("checked")
    except RuntimeError as error: print(error)
"""
    first, second, third, fourth = python_output(program, OMP_THREAD_LIMIT="1").splitlines()
    assert "1" in first and "2" in first and first == third
    assert (second, fourth) == ("waited", "checked")
