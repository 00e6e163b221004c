"""Which cores the host role and the device role run on, and their threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ktbench.spec.engine import EngineSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleCpus:
    """One cpu of every core of a role, the first of them its leading thread's; the same where the roles share them.

    `callbacks` are where a CUDA device's runtime calls functions of the host.
    """

    device: tuple[int, ...]
    host: tuple[int, ...]
    callbacks: tuple[int, ...] = ()


def split_cpus(cpus: Sequence[int], engine: EngineSpec) -> RoleCpus:
    """Who runs on which of `cpus` (one of each core): with roles=split the first ones are the device role's.

    Only the first `engine.threads` count. The device role gets `engine.device_threads` of them, half where that is
    None, and the host role the others. Raises ValueError where there are too few.
    """
    if engine.threads is not None and engine.threads > len(cpus):
        raise ValueError(f"engine.threads={engine.threads}: allowed are 1 to {len(cpus)}, the cores of this process")
    used = tuple(cpus[: engine.threads])
    if engine.device == "cuda":
        # The first core launches kernels, the second has CUDA's threads: on the first they would wait for a thread that
        # waits for them, on one of the host's they would slow its loop. Base runs its experts on all.
        own = 2 if len(used) > 2 else 1
        return RoleCpus(device=used, host=used[own:] or used, callbacks=used[own - 1 : own])
    if engine.roles == "shared":
        return RoleCpus(device=used, host=used)
    if len(used) < 2:
        raise ValueError(f"engine.roles=split: needs a core for each role, there is {len(used)}")
    count = engine.device_threads or len(used) // 2
    if count >= len(used):
        raise ValueError(
            f"engine.device_threads={count}: allowed are 1 to {len(used) - 1}, "
            f"the host role needs one of {len(used)} cores"
        )
    return RoleCpus(device=used[:count], host=used[count:])


@contextmanager
def new_threads_on(cpus: Sequence[int]) -> Iterator[None]:
    """Threads that are started meanwhile, by this one or by others, run on `cpus` from then on."""
    before, threads = os.sched_getaffinity(0), _threads()
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for thread in _threads() - threads:
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, cpus)


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@contextmanager
def reach(cpus: Sequence[int]) -> Iterator[None]:
    """Meanwhile the calling thread, pinned as it is, may open pools on `cpus`, where it might not run itself."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before | set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
