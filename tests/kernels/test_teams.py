"""Neither team, threads nor schedule change a bit of the result; threads stay on their cpus; errors name the cause."""

import os
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.command import python_output
from tests.drawing import covering, examples
from tests.kernels.layers import case, forward, forward_proven, garbage, random_batch, random_layer, together
from tests.kernels.tables import PRECISIONS, few_kernels, sizes_of


@pytest.mark.parametrize(
    ("precision", "threads", "dynamic"),
    covering(product(PRECISIONS, (1, 2, 3), (False, True)), lambda precision, *how: (precision, how)),
)
def test_same_bits_on_either_team(precision: str, threads: int, dynamic: bool, pool: _kernels.ThreadPool) -> None:
    import torch  # noqa: F401 - brings the OpenMP runtime

    of = case(precision, (5, 48, 33), 7, 3)
    moe = _kernels.MoE(of.packed, _kernels.OpenMPTeam(threads))
    expected = forward(_kernels.MoE(of.packed, pool), of.batch, isa="reference")
    assert (forward(moe, of.batch, isa="reference", dynamic=dynamic) == expected).all()
    out = garbage(of.batch)
    moe.submit(of.batch.x_th, of.batch.ids_tk, of.batch.gates_tk, out, isa="reference", dynamic=dynamic).wait()
    assert (out == expected).all()


def test_no_openmp_in_the_process_is_said() -> None:
    program = "from ktbench._kernels import OpenMPTeam\ntry: OpenMPTeam(2)\nexcept RuntimeError as error: print(error)"
    printed = python_output(program)
    assert "no OpenMP runtime is loaded in this process: import torch first" in printed


def test_a_team_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        _kernels.OpenMPTeam(0)


def test_bound_threads_are_where_they_belong_whatever_ends_them() -> None:
    """A team of fewer threads ends the others; those of the next one are new."""
    program = """
import os
from ktbench.host.roofs import bind_openmp
cpus = sorted(os.sched_getaffinity(0))[:2]
six = [cpus[0], *[cpus[-1]] * 5]
bind_openmp(six)
import torch
from ktbench._kernels import OpenMPTeam, ReadRoof
torch.set_num_threads(6)
def places():
    torch.ones(4096, 4096).sum()
    new = [int(thread) for thread in os.listdir("/proc/self/task") if thread not in before]
    masks = [os.sched_getaffinity(thread) for thread in new]
    return max(new), sorted(min(mask) for mask in masks if len(mask) == 1)
before = set(os.listdir("/proc/self/task"))
latest, first = places()
ReadRoof(OpenMPTeam(3), 1 << 20).read_once()
newest, second = places()
assert newest > latest and os.sched_getaffinity(0) == {cpus[0]}
print(first == second == [cpus[-1]] * 5)
try: bind_openmp(cpus)
except RuntimeError as error: print(error)
"""
    printed = python_output(program)
    assert "True" in printed
    assert "imported before" in printed


def test_a_pool_s_threads_sit_on_their_cpus(cpus: list[int]) -> None:
    """With `own` all of them; without, the first place is left to whoever calls."""
    program = f"""
import os, time
from ktbench._kernels import ThreadPool
for own in (False, True):
    before = set(os.listdir("/proc/self/task"))
    pool = ThreadPool({cpus[:2]}, 0, own=own)
    time.sleep(0.2)
    new = set(os.listdir("/proc/self/task")) - before
    print(sorted(list(os.sched_getaffinity(int(thread)))[0] for thread in new), pool.threads, pool.cpus)
    del pool
"""
    printed = python_output(program)
    assert printed.splitlines() == [
        f"{cpus[1:2]} {len(cpus[:2])} {cpus[:2]}",
        f"{cpus[:2]} {len(cpus[:2])} {cpus[:2]}",
    ]


@pytest.fixture(scope="session")
def teams(cpus) -> list[_kernels.ThreadPool]:
    """One, two, three and four threads on two cpus, and two of its own that no caller joins."""
    return [_kernels.ThreadPool((cpus * 4)[:threads], 50) for threads in (1, 2, 3, 4)] + [
        _kernels.ThreadPool((cpus * 2)[:2], 50, own=True)
    ]


@cache
def four_experts(precision):
    layer = random_layer(np.random.default_rng(0), 4, *sizes_of(precision, 200, 72))
    return layer, layer.packed(precision)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
@examples(2)
@given(tokens=st.integers(1, 40), per_token=st.integers(1, 4), seed=st.integers(0, 99))
def test_result_is_the_same_bit_for_bit(precision, isa, teams, tokens, per_token, seed):
    layer, packed = four_experts(precision)
    batch = random_batch(np.random.default_rng(seed), layer, tokens, per_token)
    alone = forward(_kernels.MoE(packed, teams[0]), batch, isa=isa)
    for team in teams[1:]:
        moe = _kernels.MoE(packed, team)
        assert (forward_proven(moe, batch, isa, dynamic=False) == alone).all()
        assert (forward_proven(moe, batch, isa, dynamic=True) == alone).all()


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
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
