"""A call checked once and made many times, on whatever its arrays hold then."""

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Batch, Bits, Case, case, forward, garbage
from tests.kernels.tables import kernels


@pytest.fixture
def of() -> Case:
    return case("int8", (4, 64, 64), 6, 2)


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
        waiters = [threading.Thread(target=lambda: (own.call.wait(), seen.append(own.out.copy()))) for _ in range(3)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()
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


def test_wrong_arguments_are_refused_when_it_is_made(team, of):
    moe = _kernels.MoE(of.packed, team)
    arrays = (of.batch.x_th, of.batch.ids_tk, of.batch.gates_tk, garbage(of.batch))
    with pytest.raises(ValueError, match="no kernels chosen"):
        moe.prepare(*arrays)
    with pytest.raises(TypeError, match="gates must be float32, not float64"):
        moe.prepare(arrays[0], arrays[1], arrays[2].astype(np.float64), arrays[3], isa="reference")
