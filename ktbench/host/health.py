"""Settings of this machine that spoil measurements, each with how to mend it."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.host.memory import Memory
from ktbench.host.settings import Settings
from ktbench.host.topology import Topology

_GIB = 2**30
_LITTLE_GIB = 4.0
_SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")


def health_warnings(settings: Settings, topology: Topology, memory: Memory, quota: float | None) -> tuple[str, ...]:
    """One line for each setting that makes timings slower or noisier; `quota` is in cpus, None without a limit."""
    share = _share_warnings(settings, topology, quota)
    return (*_kernel_warnings(settings, topology), *share, *_memory_warnings(memory))


def _kernel_warnings(settings: Settings, topology: Topology) -> Iterator[str]:
    if settings.thp == "never":
        yield (
            "transparent huge pages are off, reads of weights miss the TLB: "
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        )
    if settings.governor in _SLOW_GOVERNORS:
        yield f"cpu governor {settings.governor} lets clocks drop: sudo cpupower frequency-set -g performance"
    if settings.numa_balancing and len(topology.domains) >= 2:
        yield "NUMA balancing moves pages while we measure: echo 0 | sudo tee /proc/sys/kernel/numa_balancing"


def _share_warnings(settings: Settings, topology: Topology, quota: float | None) -> Iterator[str]:
    if settings.load is not None and settings.load > len(topology.cores):
        yield f"load {settings.load:.1f} is above the {len(topology.cores)} usable cores: end what else runs (see top)"
    if quota is not None and quota < len(topology.cpus):
        yield (
            f"a control group grants the time of {quota:g} cpus on {len(topology.cpus)}, so threads get stopped: "
            f"raise the quota, or start with taskset on {max(1, int(quota))} cpus"
        )


def _memory_warnings(memory: Memory) -> Iterator[str]:
    if memory.available_bytes < _LITTLE_GIB * _GIB:
        free = memory.available_bytes / _GIB
        yield f"only {free:.1f} GiB of memory free: end other programs, or take a smaller slice (model.layers=…)"
