"""One call as a pair of C functions, as cudaLaunchHostFunc calls them: without Python, again and again."""

import ctypes
import threading

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import Batch, Case, case, forward, garbage
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
        host.submit()
        host.wait()
        host.call.check()
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
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
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
    host.submit()
    host.wait()
    host.call.check()
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


def test_a_wrong_array_is_refused_when_it_is_made(team, of):
    moe = _kernels.MoE(of.packed, team)
    with pytest.raises(TypeError, match="ids must be int64, not int32"):
        moe.host_call(
            of.batch.x_th, of.batch.ids_tk.astype(np.int32), of.batch.gates_tk, garbage(of.batch), isa="reference"
        )
