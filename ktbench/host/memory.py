"""Memory and processor time that this process may use: the machine's, or less under a control group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ktbench.host.sysfs import parse_counts, read_int, read_text, sum_known
from ktbench.spec.errors import RequestError

_CGROUPS = Path("sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes in all and bytes that can be allocated now. `limit` says what sets the total: `machine` or `cgroup`."""

    total_bytes: int
    available_bytes: int
    limit: str


def read_memory(root: Path = Path("/")) -> Memory:
    """Memory under a root folder that holds `proc` and `sys`; the tightest control group above us counts.

    Raises RequestError if the kernel does not report the size of memory.
    """
    meminfo = parse_counts(read_text(root / "proc/meminfo") or "")
    if not {"MemTotal", "MemAvailable"} <= meminfo.keys():
        raise RequestError(
            f"{root / 'proc/meminfo'}: no MemTotal and MemAvailable; ktbench reads the machine from /proc, which a "
            "container or chroot has to mount"
        )
    memory = Memory(
        total_bytes=meminfo["MemTotal"] * 1024, available_bytes=meminfo["MemAvailable"] * 1024, limit="machine"
    )
    for limit, free in _memory_limits(root):
        memory = Memory(
            total_bytes=min(memory.total_bytes, limit),
            available_bytes=min(memory.available_bytes, free),
            limit="cgroup" if limit < memory.total_bytes else memory.limit,
        )
    return memory


def read_filling(root: Path = Path("/")) -> dict[str, int]:
    """Bytes of the whole machine's memory by use: free, page cache, dirty pages, swap.

    Values that the kernel does not report are left out.
    """
    meminfo = parse_counts(read_text(root / "proc/meminfo") or "")
    sums = {
        "installed_bytes": ("MemTotal",),
        "free_bytes": ("MemFree",),
        "cached_bytes": ("Cached",),
        "dirty_bytes": ("Dirty", "Writeback"),
        "swap_total_bytes": ("SwapTotal",),
    }
    filling = {name: sum(meminfo[key] for key in keys) for name, keys in sums.items() if {*keys} <= meminfo.keys()}
    if {"SwapTotal", "SwapFree"} <= meminfo.keys():
        filling["swap_used_bytes"] = meminfo["SwapTotal"] - meminfo["SwapFree"]
    return {name: 1024 * kib for name, kib in filling.items()}


def available_memory_bytes() -> int:
    """Bytes that this process can allocate now."""
    return read_memory().available_bytes


def read_cpu_quota(root: Path = Path("/")) -> float | None:
    """Cpus' worth of time that the tightest control group allows; None without such a limit."""
    quotas = [quota for folder in _groups(root, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def read_quota_stops(root: Path = Path("/")) -> int | None:
    """Periods in which a control group's CPU quota stopped its threads; None if no group counts them."""
    stats = (parse_counts(read_text(folder / "cpu.stat") or "") for folder in _groups(root, "cpu"))
    return sum_known(stat.get("nr_throttled") for stat in stats)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, still free) in bytes of every group above us that has a limit, versions 2 and 1."""
    for folder in _groups(root, "memory"):
        limit = read_int(folder / "memory.max") or read_int(folder / "memory.limit_in_bytes")
        if limit:
            used = read_int(folder / "memory.current") or read_int(folder / "memory.usage_in_bytes") or 0
            stat = parse_counts(read_text(folder / "memory.stat") or "")
            cached = stat.get("total_inactive_file", stat.get("inactive_file", 0))  # reclaimed before any kill
            yield limit, max(0, limit - used + cached)


def _quota(folder: Path) -> float | None:
    unified = (read_text(folder / "cpu.max") or "").split()
    numbers = unified or [read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if not all(number.isdecimal() for number in numbers):
        return None  # "max" in version 2, -1 in version 1: no limit
    return int(numbers[0]) / int(numbers[1])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of our control group and of those above it; inside a container only the top may be visible."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy != "0" and controller not in controllers.split(","):
            continue
        top = root / _CGROUPS / ("" if hierarchy == "0" else controllers)
        group = top / path.strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder.is_dir())
