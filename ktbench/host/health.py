"""Settings of this machine that spoil measurements, each with how to mend it."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.core.placement import placement_at
from ktbench.host.memory import Memory
from ktbench.host.settings import Settings
from ktbench.host.topology import Topology

_GIB = 2**30
_LITTLE_GIB = 4.0
_SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")


def health_warnings(
    settings: Settings, topology: Topology, memory: Memory, quota: float | None, ping_pong_ns: float | None
) -> tuple[str, ...]:
    """One line for each thing that makes timings slower or noisier.

    `quota` is in cpus, None without a limit; `ping_pong_ns` is the time of a cache line between the first two cores,
    one way, None where there is no telling.
    """
    return (
        *_kernel_warnings(settings, topology),
        *_share_warnings(settings, topology, quota),
        *_placement_warnings(ping_pong_ns),
        *_memory_warnings(memory),
    )


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


def _placement_warnings(ping_pong_ns: float | None) -> Iterator[str]:
    if ping_pong_ns is not None and placement_at(ping_pong_ns) == "same core":
        yield (
            f"the first two cores share one physical core now ({ping_pong_ns:.0f} ns from one to the other), so both "
            "together compute like one: ask for dedicated cores, or see with probe how often it happens"
        )


def _memory_warnings(memory: Memory) -> Iterator[str]:
    if memory.available_bytes < _LITTLE_GIB * _GIB:
        free = memory.available_bytes / _GIB
        yield f"only {free:.1f} GiB of memory free: end other programs, or take a smaller slice (model.layers=…)"
