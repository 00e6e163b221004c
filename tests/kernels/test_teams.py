"""The operator on PyTorch's OpenMP threads: same bits as on a pool of its own, and clear words where there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_on_either_team(threads: int, dynamic: bool) -> None:
    import torch  # noqa: F401 - brings the OpenMP runtime

    from ktbench._kernels import MoE, OpenMPTeam, PackedExperts, ThreadPool

    random = np.random.default_rng(threads)
    experts, hidden, ffn, tokens, k = 5, 48, 33, 7, 3
    bits = [
        random.normal(size=s).astype(np.float32).view(np.uint32) >> 16
        for s in [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    ]
    gate, up, down = (b.astype(np.uint16) for b in bits)
    packed = PackedExperts(experts, hidden, ffn)
    for expert in range(experts):
        packed.write_expert(expert, gate, np.roll(up, expert, axis=0).copy(), down)
    x = (random.normal(size=(tokens, hidden)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ids = np.array([random.permutation(experts)[:k] for _ in range(tokens)])
    gates = random.random((tokens, k), dtype=np.float32)
    outputs = []
    for team in (OpenMPTeam(threads), ThreadPool([0] * threads, 20)):
        out = np.zeros_like(x)
        MoE(packed, team).forward(x, ids, gates, out, isa="reference", dynamic=dynamic)
        outputs.append(out)
    assert outputs[0].any()
    assert np.array_equal(*outputs)


def test_no_openmp_in_the_process_is_said() -> None:
    program = "from ktbench._kernels import OpenMPTeam\ntry: OpenMPTeam(2)\nexcept RuntimeError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "no OpenMP runtime is loaded in this process: import torch first" in done.stdout


def test_a_team_of_nobody_is_refused() -> None:
    from ktbench._kernels import OpenMPTeam

    with pytest.raises(ValueError, match="at least one thread"):
        OpenMPTeam(0)


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
try: OpenMPTeam(2).pin([0])
except ValueError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "cpu 100000 is not one this process may run on" in done.stdout
    assert "1 cpus for 2 threads" in done.stdout
