"""The operator on PyTorch's OpenMP threads: same bits as on a pool of its own, and clear words where there are none."""

import pytest

from ktbench import _kernels
from tests.command import python_output
from tests.kernels.layers import case, forward, garbage
from tests.kernels.tables import PRECISIONS


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
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


def test_pinned_threads_stay_where_they_were_put() -> None:
    program = """
import os, torch
from ktbench._kernels import OpenMPTeam
cpus = sorted(os.sched_getaffinity(0))[:2]
OpenMPTeam(len(cpus)).pin(cpus)
torch.set_num_threads(len(cpus))
torch.ones(4096, 4096).sum()
masks = {tuple(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}
assert {(cpu,) for cpu in cpus} <= masks, masks
try: OpenMPTeam(1).pin([100000])
except ValueError as error: print(error)
try: OpenMPTeam(2).pin(cpus[:1])
except ValueError as error: print(error)
"""
    printed = python_output(program)
    assert "cpu 100000 is not one this process may run on" in printed
    assert "1 cpus for 2 threads" in printed


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
