"""Interference on the measured cpus: the kernel's counters before and after, and their difference."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, TypeVar

from ktbench.host.memory import read_quota_stops
from ktbench.host.sysfs import parse_counts, read_int, read_text, sum_known
from ktbench.spec.system_metrics import InterferenceCounters

_CPU = Path("sys/devices/system/cpu")
# Columns of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. Guests are in user already.
_BUSY, _STEAL = (0, 1, 2, 5, 6), 7
_Number = TypeVar("_Number", int, float)
_SWAPPED, _MIGRATED = ("pswpin", "pswpout"), ("numa_pages_migrated",)
# Fields of `InterferenceCounters` that are differences of fields of `Usage` and `Counters`.
_OF_PROCESS = ("preemptions", "minor_faults", "major_faults")
_OF_MACHINE = ("stolen_s", "quota_stops", "thermal_stops", "swapped_pages", "migrated_pages")


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """CPU seconds and counts of this process and of its ended children since they started."""

    cpu_s: float
    preemptions: int
    minor_faults: int
    major_faults: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counts since the machine or the process started; None where the kernel does not report them.

    `busy_s` and `stolen_s` are CPU seconds of some cpus; `stolen_share` is stolen time as a share of all their time.
    """

    at_s: float
    usage: Usage
    busy_s: float | None
    stolen_s: float | None
    stolen_share: float | None
    quota_stops: int | None
    thermal_stops: int | None
    swapped_pages: int | None
    migrated_pages: int | None


def read_counters(
    cpus: Sequence[int],
    root: Path = Path("/"),
    usage: Callable[[], Usage] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Counters:
    """The counters of `cpus` and of this process, under a root folder that holds `proc` and `sys`."""
    ticks = cpu_ticks(read_text(root / "proc/stat") or "", cpus)
    vmstat = parse_counts(read_text(root / "proc/vmstat") or "")
    tick_s, total = 1 / os.sysconf("SC_CLK_TCK"), sum(map(sum, ticks))
    stolen = sum(of[_STEAL] for of in ticks)
    return Counters(
        at_s=clock(),
        usage=(usage or own_usage)(),
        busy_s=sum(of[i] for of in ticks for i in _BUSY) * tick_s if ticks else None,
        stolen_s=stolen * tick_s if ticks else None,
        stolen_share=stolen / total if total else None,
        quota_stops=read_quota_stops(root),
        thermal_stops=_thermal_stops(root, cpus),
        swapped_pages=_sum(vmstat, _SWAPPED),
        migrated_pages=_sum(vmstat, _MIGRATED),
    )


def disturbance(
    before: Counters, after: Counters, cpus: Sequence[int], clock_hz: float | None = None
) -> InterferenceCounters:
    """What happened between two readings of the counters of `cpus`."""
    then, now = before.usage, after.usage
    busy_s = _less(after.busy_s, before.busy_s)
    differences: dict[str, Any] = {name: getattr(now, name) - getattr(then, name) for name in _OF_PROCESS}
    differences |= {name: _less(getattr(after, name), getattr(before, name)) for name in _OF_MACHINE}
    return InterferenceCounters(
        seconds=after.at_s - before.at_s,
        cpus=len(cpus),
        # Ticks are coarser than our own times.
        others_s=None if busy_s is None else max(0.0, busy_s - (now.cpu_s - then.cpu_s)),
        clock_hz=clock_hz,
        **differences,
    )


def own_usage() -> Usage:
    """The kernel's counters of this process and its ended children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Usage(
        cpu_s=sum(of.ru_utime + of.ru_stime for of in both),
        preemptions=sum(of.ru_nivcsw for of in both),
        minor_faults=sum(of.ru_minflt for of in both),
        major_faults=sum(of.ru_majflt for of in both),
    )


def read_clock_hz(cpus: Sequence[int], root: Path = Path("/")) -> float | None:
    """Mean clock of `cpus` as reported by cpufreq; None if it is not reported."""
    clocks = (read_int(root / _CPU / f"cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus)
    known = [1e3 * khz for khz in clocks if khz is not None]
    return mean(known) if known else None


def others_running(root: Path = Path("/")) -> int | None:
    """Threads that run or wait for a core at this moment, except the calling one."""
    words = (read_text(root / "proc/loadavg") or "").split()
    running = words[3].partition("/")[0] if len(words) > 3 else ""
    return max(0, int(running) - 1) if running.isdecimal() else None


def cpu_ticks(stat: str, cpus: Iterable[int]) -> list[list[int]]:
    """The eight counts in /proc/stat, in ticks, of each of `cpus` that is listed with all of them."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    lines = (line.split() for line in stat.splitlines())
    rows = [words[1 : _STEAL + 2] for words in lines if words and words[0] in wanted]
    return [[*map(int, row)] for row in rows if len(row) == _STEAL + 1 and all(word.isdecimal() for word in row)]


def _thermal_stops(root: Path, cpus: Sequence[int]) -> int | None:
    return sum_known(read_int(root / _CPU / f"cpu{cpu}/thermal_throttle/core_throttle_count") for cpu in cpus)


def _sum(counts: dict[str, int], names: Sequence[str]) -> int | None:
    return sum(counts[name] for name in names) if {*names} <= counts.keys() else None


def _less(after: _Number | None, before: _Number | None) -> _Number | None:
    return None if after is None or before is None else after - before
