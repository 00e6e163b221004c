"""Neither the number of threads nor the schedule changes a bit of the result; tasks are counted as they are taken."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import GRANTED, Batch, forward, forward_proven, random_batch, random_layer


@pytest.mark.parametrize("isa", GRANTED)
@settings(max_examples=8, deadline=None)
@given(threads=st.integers(1, 4), tokens=st.sampled_from([1, 5, 40]), seed=st.integers(0, 99))
def test_result_is_the_same_bit_for_bit(isa, cpus, threads, tokens, seed):
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, 4, 200, 72)
    batch = random_batch(rng, layer, tokens, 3)
    packed = layer.packed()
    alone = forward(_kernels.MoE(packed, _kernels.ThreadPool(cpus[:1], 0)), batch, isa=isa)
    together = _kernels.MoE(packed, _kernels.ThreadPool((cpus * 4)[:threads], 50))
    assert (forward_proven(together, batch, isa, dynamic=False) == alone).all()
    assert (forward_proven(together, batch, isa, dynamic=True) == alone).all()


def test_static_and_dynamic_tasks_are_told_apart(pool, rng):
    layer = random_layer(rng, 4, 128, 128)
    batch = random_batch(rng, layer, 6, 2)
    moe = _kernels.MoE(layer.packed(), pool)
    forward(moe, batch, isa="reference")
    static = moe.counters()
    forward(moe, batch, isa="reference", dynamic=True)
    both = moe.counters()
    assert static["tasks_static"] > 0 and static["tasks_dynamic"] == static["tasks_stolen"] == 0
    assert both["tasks_dynamic"] == static["tasks_static"] == both["tasks_static"]


def test_an_idle_thread_steals(cpus, rng):
    """All work of the first phase's far half is small, so its thread comes back for more."""
    layer = random_layer(rng, 2, 256, 256)
    batch = random_batch(rng, layer, 201, 1)
    batch = Batch(batch.x_th, np.array([[0]] * 200 + [[1]]), batch.gates_tk)
    moe = _kernels.MoE(layer.packed(), _kernels.ThreadPool((cpus * 2)[:2], 200))
    for _ in range(20):
        forward(moe, batch, isa="reference", dynamic=True)
        if moe.counters()["tasks_stolen"]:
            return
    pytest.fail("nothing was stolen in 20 lopsided calls")


def test_bytes_and_flops_are_those_of_the_active_experts(pool, rng):
    layer = random_layer(rng, 6, 64, 96)
    batch = random_batch(rng, layer, 7, 1)
    batch = Batch(batch.x_th, np.array([[0]] * 3 + [[4]] * 4), batch.gates_tk)
    packed = layer.packed()
    moe = _kernels.MoE(packed, pool)
    forward(moe, batch, isa="reference")
    assert moe.counters()["weight_bytes"] == packed.nbytes * 2 // 6
    assert moe.counters()["flops"] == 2 * 3 * 64 * 96 * 7


@pytest.mark.parametrize("isa", GRANTED)
def test_two_python_threads_at_once(isa, pool, rng):
    layer = random_layer(rng, 4, 96, 64)
    packed = layer.packed()
    shared = _kernels.MoE(packed, pool)
    own = [_kernels.MoE(packed, pool) for _ in range(2)]
    batches = [random_batch(rng, layer, tokens, 2) for tokens in (3, 50)]
    expected = [forward(shared, batch, isa=isa) for batch in batches]
    wrong = []

    def hammer(me: int) -> None:
        for turn in range(30):
            moe = own[me] if turn % 2 else shared
            if (forward(moe, batches[me], isa=isa, dynamic=turn % 3 == 0) != expected[me]).any():
                wrong.append((me, turn))

    hammers = [threading.Thread(target=hammer, args=(me,)) for me in range(2)]
    for thread in hammers:
        thread.start()
    for thread in hammers:
        thread.join()
    assert not wrong


def test_calling_thread_keeps_its_affinity(pool, rng):
    before = os.sched_getaffinity(0)
    layer = random_layer(rng, 2, 32, 32)
    forward(_kernels.MoE(layer.packed(pool), pool), random_batch(rng, layer, 2, 1), isa="reference")
    assert os.sched_getaffinity(0) == before
