"""Kernel and firmware settings that change what is measured."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ktbench.host.sysfs import read_int, read_text

_CPU = Path("sys/devices/system/cpu")
_CLOCKS = Path("sys/devices/system/clocksource/clocksource0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """None where the machine does not say, as virtual machines often do not.

    `thp` is the mode of transparent huge pages, `load` the 1-minute load average, `hypervisor` "none" on bare metal.
    Where cpus differ `governor` and `energy_preference` list what there is, as `performance, powersave`.
    """

    cpu_model: str | None
    kernel: str
    hypervisor: str | None
    governor: str | None
    turbo: bool | None
    thp: str | None
    numa_balancing: bool | None
    load: float | None
    energy_preference: str | None = None
    swappiness: int | None = None
    clock_source: str | None = None


def read_settings(root: Path = Path("/"), cpus: Sequence[int] = (0,)) -> Settings:
    """Settings under a root folder that holds `proc` and `sys`; clocks are those of `cpus`."""
    cpuinfo = _cpuinfo(root)
    balancing = read_int(root / "proc/sys/kernel/numa_balancing")
    load = read_text(root / "proc/loadavg")
    return Settings(
        cpu_model=_cpu_model(cpuinfo),
        kernel=platform.release(),
        hypervisor=_hypervisor(root, cpuinfo),
        governor=_of_cpus(root, cpus, "scaling_governor"),
        turbo=_turbo(root),
        thp=_chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=None if balancing is None else balancing > 0,
        load=None if load is None else float(load.split()[0]),
        energy_preference=_of_cpus(root, cpus, "energy_performance_preference"),
        swappiness=read_int(root / "proc/sys/vm/swappiness"),
        clock_source=read_text(root / _CLOCKS / "current_clocksource"),
    )


def _of_cpus(root: Path, cpus: Sequence[int], name: str) -> str | None:
    """The words that the cpufreq files of this name hold, each once; None without any."""
    found = {read_text(root / _CPU / f"cpu{cpu}/cpufreq" / name) for cpu in cpus} - {None}
    return ", ".join(sorted(map(str, found))) or None


def _cpuinfo(root: Path) -> dict[str, str]:
    """Fields of the first processor."""
    first = (read_text(root / "proc/cpuinfo") or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _cpu_model(cpuinfo: dict[str, str]) -> str | None:
    """The name with family, model and stepping: virtual machines often give several processors the same name."""
    name = cpuinfo.get("model name")
    numbers = [f"{key.split()[-1]} {cpuinfo[key]}" for key in ("cpu family", "model", "stepping") if key in cpuinfo]
    return f"{name} ({', '.join(numbers)})" if name and numbers else name


def _hypervisor(root: Path, cpuinfo: dict[str, str]) -> str | None:
    if "flags" not in cpuinfo:
        return None
    if "hypervisor" not in cpuinfo["flags"].split():
        return "none"
    if "kvm-clock" in (read_text(root / _CLOCKS / "available_clocksource") or "").split():
        return "KVM"
    return read_text(root / "sys/hypervisor/type") or read_text(root / "sys/class/dmi/id/sys_vendor") or "unnamed"


def _turbo(root: Path) -> bool | None:
    off = read_int(root / _CPU / "intel_pstate/no_turbo")
    boost = read_int(root / _CPU / "cpufreq/boost")
    if off is not None:
        return off == 0
    return None if boost is None else boost == 1


def _chosen(modes: str | None) -> str | None:
    """The bracketed word of `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", modes or "")
    return found and found.group(1)
