"""Whether the kernel ended a process because memory ran out: it counts those, in cgroups and for the whole machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


@dataclass(frozen=True, kw_only=True, slots=True)
class OomCount:
    """How many processes the kernel has ended for want of memory, and `where` it counted them.

    `kills` is None where nothing counts them.
    """

    kills: int | None
    where: str = ""


def oom_count(cgroups: Path = _CGROUPS, own: Path = _OWN, machine: Path = _MACHINE) -> OomCount:
    """The counter that is nearest to this process (cgroups(7), proc_vmstat(5))."""
    for file, where in (*_counters(cgroups, own), (machine, "on this machine")):
        try:
            words = dict(line.split(maxsplit=1) for line in file.read_text().splitlines() if " " in line)
            return OomCount(kills=int(words["oom_kill"]), where=where)
        except (OSError, KeyError, ValueError):
            continue
    return OomCount(kills=None)


def killed_reason(before: OomCount, after: OomCount) -> tuple[bool, str]:
    """Whether a process that SIGKILL ended was ended for want of memory, and by whom it was, as far as is known."""
    if before.kills is None or after.kills is None:
        return False, "SIGKILL: memory ran out, or somebody did it, this machine does not say which"
    if after.kills > before.kills:
        return True, f"the kernel because memory ran out (it counted an oom_kill {after.where})"
    return False, f"SIGKILL from outside: the kernel counted no oom_kill {after.where}"


def _counters(cgroups: Path, own: Path) -> Iterator[tuple[Path, str]]:
    """Of version 2, then of version 1. A container may see its own group at the root."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return
    for _, controllers, path in groups:
        below = path.lstrip("/")
        if not controllers:
            yield from ((cgroups / at / "memory.events", "in this cgroup") for at in (below, ""))
        elif "memory" in controllers.split(","):
            yield from ((cgroups / "memory" / at / "memory.oom_control", "in this cgroup") for at in (below, ""))
