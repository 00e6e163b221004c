"""How the threads of PyTorch and those of the fused kernel share the cores. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping

# How long a thread of our pool that has nothing to do spins before it parks, in µs.
SPIN_US = 50

# For the environment of a worker process, before PyTorch is loaded: libgomp reads it once. By itself a thread of
# PyTorch spins 300,000 rounds (some 13 ms) after each parallel region, on the very core that the kernel's thread needs
# next. Two Granite Rapids cores, two layers of Qwen3-30B-A3B, decode: by default +v takes 15.8 ms at best and 22 at the
# median, base 20.8; without spinning (OMP_WAIT_POLICY=passive) +v 15.2 and base 31, since every region then wakes a
# thread; with 10,000 rounds +v 13.2 and 14.2, base 20.4: long enough for the gaps inside a layer, too short to be in
# the way.
WORKER_ENVIRONMENT: Mapping[str, str] = {"GOMP_SPINCOUNT": "10000"}


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))
