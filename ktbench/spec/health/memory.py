"""How memory is set and filled when a run begins, as far as it spoils measurements."""

from __future__ import annotations

from ktbench.spec.health.check import Check, Facts

_GIB = 2**30
_LITTLE_GIB = 4.0
_LITTLE_SWAP_BYTES = 64 * 2**20
_MUCH_DIRTY_BYTES = 256 * 2**20
_EAGER_SWAPPINESS = 10


def _numa_balancing(facts: Facts) -> str:
    domains = sum(bool(cpus) for cpus in facts["numa_nodes"])
    return "NUMA balancing is on" if facts["numa_balancing"] and domains > 1 else ""


def _page_cache(facts: Facts) -> str:
    total = facts["installed_bytes"]
    if facts["free_bytes"] > total / 10 or facts["cached_bytes"] < total / 2:
        return ""
    free, cached = (facts[name] / _GIB for name in ("free_bytes", "cached_bytes"))
    return f"the page cache holds {cached:.1f} GiB, {free:.1f} GiB are free"


MEMORY_CHECKS = (
    Check(
        name="huge pages",
        needs=("thp",),
        reads=("sys/kernel/mm/transparent_hugepage/enabled",),
        good="madvise or always",
        wrong=lambda facts: "transparent huge pages are off" if facts["thp"] == "never" else "",
        harm="reads of weights miss the TLB",
        cure="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    Check(
        name="NUMA balancing",
        needs=("numa_balancing", "numa_nodes"),
        reads=("proc/sys/kernel/numa_balancing",),
        good="off where there are several nodes",
        wrong=_numa_balancing,
        harm="the kernel unmaps and moves pages while we measure",
        cure="sudo sysctl kernel.numa_balancing=0",
    ),
    Check(
        name="memory",
        needs=("memory_available_bytes",),
        reads=("proc/meminfo",),
        good=f"{_LITTLE_GIB:g} GiB or more to be had",
        wrong=lambda facts: (
            f"only {facts['memory_available_bytes'] / _GIB:.1f} GiB of memory free"
            if facts["memory_available_bytes"] < _LITTLE_GIB * _GIB
            else ""
        ),
        harm="the kernel reclaims pages while we measure, or ends the worker",
        cure="end other programs, or take a smaller slice (model.layers=…)",
    ),
    Check(
        name="page cache",
        needs=("free_bytes", "cached_bytes", "installed_bytes"),
        reads=("proc/meminfo",),
        good="a tenth of memory free, or a page cache below half of it",
        wrong=_page_cache,
        harm="weights find no huge pages and land on the wrong NUMA node",
        cure="sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
    ),
    Check(
        name="dirty pages",
        needs=("dirty_bytes",),
        reads=("proc/meminfo",),
        good=f"below {_MUCH_DIRTY_BYTES // 2**20} MiB",
        wrong=lambda facts: (
            f"{facts['dirty_bytes'] / 2**20:.0f} MiB wait to be written to disk"
            if facts["dirty_bytes"] > _MUCH_DIRTY_BYTES
            else ""
        ),
        harm="the kernel writes them while we measure",
        cure="sync",
    ),
    Check(
        name="swap",
        needs=("swap_used_bytes",),
        reads=("proc/meminfo",),
        good="unused",
        wrong=lambda facts: (
            f"{facts['swap_used_bytes'] / 2**20:.0f} MiB are swapped out"
            if facts["swap_used_bytes"] > _LITTLE_SWAP_BYTES
            else ""
        ),
        harm="what is needed again is read from disk",
        cure="sudo swapoff -a",
    ),
    Check(
        name="swappiness",
        needs=("swappiness", "swap_total_bytes"),
        reads=("proc/sys/vm/swappiness",),
        good=f"at most {_EAGER_SWAPPINESS} where there is swap",
        wrong=lambda facts: (
            f"swappiness {facts['swappiness']}"
            if facts["swap_total_bytes"] and facts["swappiness"] > _EAGER_SWAPPINESS
            else ""
        ),
        harm="weights that rest for a while may be swapped out",
        cure="sudo sysctl vm.swappiness=1",
    ),
)
