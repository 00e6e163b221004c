"""Neither the number of threads nor the schedule changes a bit of the result."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import case, forward, forward_proven, random_batch, random_layer, together
from tests.kernels.tables import kernels, sizes_of


@pytest.fixture(scope="session")
def teams(cpus) -> list[_kernels.ThreadPool]:
    """One, two, three and four threads on two cpus, and two of its own that no caller joins."""
    return [_kernels.ThreadPool((cpus * 4)[:threads], 50) for threads in (1, 2, 3, 4)] + [
        _kernels.ThreadPool((cpus * 2)[:2], 50, own=True)
    ]


@pytest.mark.parametrize(("precision", "isa"), kernels())
@settings(max_examples=5, deadline=None)
@given(tokens=st.integers(1, 40), per_token=st.integers(1, 4), seed=st.integers(0, 99))
def test_result_is_the_same_bit_for_bit(precision, isa, teams, tokens, per_token, seed):
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, 4, *sizes_of(precision, 200, 72))
    batch = random_batch(rng, layer, tokens, per_token)
    packed = layer.packed(precision)
    alone = forward(_kernels.MoE(packed, teams[0]), batch, isa=isa)
    for team in teams[1:]:
        moe = _kernels.MoE(packed, team)
        assert (forward_proven(moe, batch, isa, dynamic=False) == alone).all()
        assert (forward_proven(moe, batch, isa, dynamic=True) == alone).all()


@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_two_python_threads_at_once(precision, isa, pool):
    """Each with an operator of its own and with one that they share, on layers of their own."""
    of = [case(precision, sizes, tokens, 2) for sizes, tokens in [((4, 96, 64), 3), ((3, 64, 128), 30)]]
    moes = [_kernels.MoE(layer.packed, pool) for layer in of]
    expected = [forward(moe, layer.batch, isa=isa) for moe, layer in zip(moes, of, strict=True)]
    wrong = []

    def hammer(me: int) -> None:
        for turn in range(8):
            which = me if turn % 2 else 1 - me
            if (forward(moes[which], of[which].batch, isa=isa, dynamic=turn % 3 == 0) != expected[which]).any():
                wrong.append((me, turn))

    together(hammer, 2)
    assert not wrong


def test_calling_thread_keeps_its_affinity(pool, rng):
    before = os.sched_getaffinity(0)
    layer = random_layer(rng, 2, 32, 32)
    forward(_kernels.MoE(layer.packed(team=pool), pool), random_batch(rng, layer, 2, 1), isa="reference")
    assert os.sched_getaffinity(0) == before
