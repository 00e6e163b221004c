"""A call checked once and made many times: from Python, and as a pair of C functions for cudaLaunchHostFunc."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Batch, Bits, Case, case, forward, garbage, together
from tests.kernels.tables import kernels

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


class Host:
    """A host call, its arrays, and its two functions."""

    def __init__(self, moe: _kernels.MoE, batch: Batch, **options: object) -> None:
        self.x, self.ids, self.gates = batch.x_th.copy(), batch.ids_tk.copy(), batch.gates_tk.copy()
        self.out = garbage(batch)
        self.call = moe.host_call(self.x, self.ids, self.gates, self.out, **options)

    def submit(self) -> None:
        HostFunction(self.call.submit)(self.call.data)

    def wait(self) -> None:
        HostFunction(self.call.wait)(self.call.data)

    def replay(self) -> None:
        """One whole call, which raises what went wrong in it."""
        self.submit()
        self.wait()
        self.call.check()

    @property
    def batch(self) -> Batch:
        return Batch(self.x, self.ids, self.gates)


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_each_replay_computes_what_the_arrays_hold_then(precision, isa, team):
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    host = Host(moe, of.batch, isa=isa, dynamic=True)
    for turn in range(3):
        host.x[:], host.ids[:] = np.roll(host.x, turn, 0), (host.ids + turn) % 4
        host.gates *= 0.5
        host.replay()
        assert (host.out == forward(moe, host.batch, isa=isa)).all()


def test_two_calls_interleave_as_graph_nodes_do(team, of):
    moe = _kernels.MoE(of.packed, team)
    first, second = Host(moe, of.batch, isa="reference"), Host(moe, of.batch, isa="reference")
    second.x[:] = np.roll(second.x, 1, 0)
    for host in (first, second):
        host.submit()
    for host in (first, second):
        host.wait()
        host.call.check()
        assert (host.out == forward(moe, host.batch, isa="reference")).all()


def test_it_may_be_called_from_a_thread_that_python_did_not_start_the_call_on(team, of):
    moe = _kernels.MoE(of.packed, team)
    host = Host(moe, of.batch, isa="reference")
    for step in (host.submit, host.wait):
        together(lambda _, step=step: step(), 1)
    host.call.check()
    assert (host.out == forward(moe, host.batch, isa="reference")).all()


def test_submitting_again_waits_for_the_call_before(team, of):
    moe = _kernels.MoE(of.packed, team)
    host = Host(moe, of.batch, isa="reference")
    for _ in range(5):
        host.submit()
    host.wait()
    host.call.check()
    assert (host.out == forward(moe, host.batch, isa="reference")).all()


def test_an_error_is_kept_for_check_and_the_next_replay_is_clean(team, of):
    moe = _kernels.MoE(of.packed, team)
    host = Host(moe, of.batch, isa="reference")
    host.ids[2, 0] = -7
    host.submit()
    host.wait()
    with pytest.raises(IndexError, match=r"expert id -7 of token 2 is not in 0\.\.3"):
        host.call.check()
    host.call.check()
    assert (host.out == garbage(of.batch)).all(), "nothing was computed"
    host.ids[2, 0] = 1
    host.replay()
    assert (host.out == forward(moe, host.batch, isa="reference")).all()


def test_waiting_before_submitting_is_an_error(team, of):
    host = Host(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    host.wait()
    with pytest.raises(RuntimeError, match="wait before submit"):
        host.call.check()


def test_too_few_threads_for_the_domains_is_an_error(cpus):
    split = case("bf16", (2, 64, 128), 3, 1, domains=2)
    moe = _kernels.MoE(split.packed, _kernels.ThreadPool(cpus[:1], 0))
    host = Host(moe, split.batch, isa="reference", numa=True)
    host.submit()
    with pytest.raises(ValueError, match="2 domains need as many threads"):
        host.call.check()


def test_dropping_it_waits(team, of):
    moe = _kernels.MoE(of.packed, team)
    host = Host(moe, of.batch, isa="reference")
    host.submit()
    del host.call
    assert (host.out == forward(moe, host.batch, isa="reference")).all()


class Own:
    """A prepared call with arrays of its own."""

    def __init__(self, moe: _kernels.MoE, batch: Batch, **options: object) -> None:
        self.moe, self.options, self.out = moe, options, garbage(batch)
        self.batch = Batch(batch.x_th.copy(), batch.ids_tk.copy(), batch.gates_tk.copy())
        self.call = moe.prepare(self.batch.x_th, self.batch.ids_tk, self.batch.gates_tk, self.out, **options)

    def expected(self) -> Bits:
        return forward(self.moe, self.batch, **self.options)


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_each_call_computes_what_the_arrays_hold_then(precision, isa, team):
    of = case(precision, (4, 64, 64), 6, 2)
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa=isa, dynamic=True)
    for turn in range(4):
        own.batch.x_th[:] = np.roll(own.batch.x_th, turn, 0)
        own.batch.ids_tk[:] = (own.batch.ids_tk + turn) % 4
        own.batch.gates_tk[:] *= 0.5
        own.out[:] = garbage(own.batch)
        if turn % 2:
            own.call.forward()
        else:
            own.call.submit()
            own.call.wait()
        assert (own.out == own.expected()).all()


def test_routing_is_read_before_submit_returns(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    expected = own.expected()
    own.call.submit()
    own.batch.ids_tk[:], own.batch.gates_tk[:] = 99, np.nan
    own.call.wait()
    assert (own.out == expected).all()


def test_one_call_at_most_is_outstanding(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    own.call.submit()
    for again in (own.call.submit, own.call.forward):
        with pytest.raises(RuntimeError, match="the call before has not been waited for"):
            again()
    own.call.wait()
    assert (own.out == own.expected()).all()
    own.call.forward()


def test_waiting_for_nothing_returns(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    own.call.wait()
    assert own.call.done and (own.out == garbage(of.batch)).all()
    own.call.forward()
    own.call.wait()
    assert own.call.done


def test_a_wrong_id_leaves_nothing_outstanding(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    own.batch.ids_tk[2, 1] = 4
    for attempt in (own.call.submit, own.call.forward):
        with pytest.raises(IndexError, match=r"expert id 4 of token 2 is not in 0\.\.3"):
            attempt()
    own.call.wait()
    own.batch.ids_tk[2, 1] = 3
    own.call.forward()
    assert (own.out == own.expected()).all()


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["submit", "wait", "forward"])), max_size=40))
def test_any_interleaving_is_refused_or_right(team, steps):
    of = case("int8", (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    owns = [
        Own(moe, Batch(np.roll(of.batch.x_th, i, 0), of.batch.ids_tk, of.batch.gates_tk), isa="reference")
        for i in range(5)
    ]
    expected, outstanding = [own.expected() for own in owns], set[int]()
    for which, step in steps:
        own = owns[which]
        if step != "wait" and which in outstanding:
            with pytest.raises(RuntimeError):
                getattr(own.call, step)()
            continue
        getattr(own.call, step)()
        (outstanding.add if step == "submit" else outstanding.discard)(which)
        if step != "submit" and not np.array_equal(own.out, garbage(of.batch)):
            assert (own.out == expected[which]).all()
            own.out[:] = garbage(of.batch)
    for own in owns:
        own.call.wait()


def test_done_needs_no_wait_where_the_pool_is_its_own(cpus, of):
    own = Own(_kernels.MoE(of.packed, _kernels.ThreadPool(cpus[:1], 50, own=True)), of.batch, isa="reference")
    own.call.submit()
    while not own.call.done:
        pass
    assert (own.out == own.expected()).all()
    own.call.wait()


def test_several_threads_may_wait(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    expected, seen = own.expected(), []
    for _ in range(20):
        own.out[:] = garbage(of.batch)
        own.call.submit()
        together(lambda _: (own.call.wait(), seen.append(own.out.copy())), 3)
    assert len(seen) == 60 and all((out == expected).all() for out in seen)


def test_dropping_it_waits_and_lets_go(team, of):
    own = Own(_kernels.MoE(of.packed, team), of.batch, isa="reference")
    expected, out, alive = own.expected(), own.out, weakref.ref(own.batch.x_th)
    own.call.submit()
    del own.batch
    gc.collect()
    assert alive() is not None
    del own.call
    assert alive() is None
    right = out.copy()
    assert (right == expected).all()
