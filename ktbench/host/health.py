"""Facts of this machine for the checks of `ktbench.spec.health`, and why some are unknown."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any

from ktbench.host.memory import read_cpu_quota, read_filling, read_memory
from ktbench.host.noise import disturbance, others_running, read_clock_hz, read_counters
from ktbench.host.sysfs import parse_cpu_list, read_int, read_text
from ktbench.host.topology import Topology
from ktbench.spec.health import MACHINE_CHECKS, TRIAL_CHECKS, Check, Facts, unknown
from ktbench.spec.system_metrics import InterferenceCounters

_CPU = Path("sys/devices/system/cpu")
_CLOCKS = Path("sys/devices/system/clocksource/clocksource0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings; None where the machine does not report one, as virtual machines often do not.

    `thp` is the mode of transparent huge pages, `load` the 1-minute load average, `hypervisor` "none" on bare metal. If
    cpus differ, `governor` and `energy_preference` list all values: `performance, powersave`.
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
        governor=_cpufreq_values(root, cpus, "scaling_governor"),
        turbo=_turbo(root),
        thp=_bracketed_word(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        numa_balancing=None if balancing is None else balancing > 0,
        load=None if load is None else float(load.split()[0]),
        energy_preference=_cpufreq_values(root, cpus, "energy_performance_preference"),
        swappiness=read_int(root / "proc/sys/vm/swappiness"),
        clock_source=read_text(root / _CLOCKS / "current_clocksource"),
    )


def _cpufreq_values(root: Path, cpus: Sequence[int], name: str) -> str | None:
    """The distinct contents of the cpufreq files of this name; None without any."""
    values = {read_text(root / _CPU / f"cpu{cpu}/cpufreq" / name) for cpu in cpus} - {None}
    return ", ".join(sorted(map(str, values))) or None


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


def _bracketed_word(modes: str | None) -> str | None:
    """The bracketed word of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", modes or "")
    return match and match.group(1)


_GIB = 2**30
# A thread that runs at all of these moments is not running by chance.
_LOOKS, _BETWEEN_S = 4, 0.005


def health_facts(topology: Topology, root: Path = Path("/")) -> dict[str, Any]:
    """Facts for `MACHINE_CHECKS` except the core placement, which is measured; None where unknown.

    `missing` has the reason for each check of a machine or a trial that cannot be made. Raises ValueError if the kernel
    does not report the size of memory.
    """
    facts = {
        **asdict(read_settings(root, topology.cpus)),
        **_shape_facts(topology),
        **_memory_facts(root),
        **_sharing_facts(topology, root),
    }
    return facts | {"missing": _missing(facts, topology.cpus, root)}


def _shape_facts(topology: Topology) -> dict[str, Any]:
    return {
        "cpus": list(topology.cpus),
        "cores": len(topology.cores),
        "numa_nodes": [list(node.cpus) for node in topology.nodes],
    }


def _memory_facts(root: Path) -> dict[str, Any]:
    memory = read_memory(root)
    return {
        "memory_total_gib": round(memory.total_bytes / _GIB),
        "memory_available_bytes": memory.available_bytes,
        "memory_limit": memory.limit,
        **read_filling(root),
    }


def _sharing_facts(topology: Topology, root: Path) -> dict[str, Any]:
    """Other users of the cores."""
    counters = read_counters(topology.cpus, root)
    return {
        "cpu_quota": read_cpu_quota(root),
        "others_running": _steadily_running(root),
        "foreign_siblings": _foreign_siblings(topology, root),
        "stolen_share": counters.stolen_share,
        "thermal_stops": counters.thermal_stops,
    }


def _missing(facts: Facts, cpus: tuple[int, ...], root: Path) -> dict[str, str]:
    checks = [*unknown(MACHINE_CHECKS, facts), *unknown(TRIAL_CHECKS, asdict(_nothing(cpus, root)))]
    return {check.name: _why_unknown(check, root) for check in checks if _is_read_here(check)}


def _is_read_here(check: Check) -> bool:
    """Whether it is read from kernel files: the core placement is measured, GPUs are watched if cells use them."""
    return all(name.startswith(("proc/", "sys/")) for name in check.reads)


def _nothing(cpus: tuple[int, ...], root: Path) -> InterferenceCounters:
    """The metrics of a trial without steps: values that are None there can never be known."""
    now = read_counters(cpus, root)
    return disturbance(now, now, cpus, read_clock_hz(cpus, root))


def _why_unknown(check: Check, root: Path) -> str:
    for name in check.reads:
        if path := next(root.glob(name), None):
            return f"/{name} has no such value" if os.access(path, os.R_OK) else f"/{name} may not be read"
    return f"no {' or '.join(f'/{_first_absent(name, root)}' for name in check.reads)}"


def _first_absent(name: str, root: Path) -> str:
    """The path up to its first missing folder, which explains many missing files."""
    parts = name.split("/")
    tops = ("/".join(parts[:length]) for length in range(1, len(parts)))
    return next((top for top in tops if next(root.glob(top), None) is None), name)


def _steadily_running(root: Path) -> int | None:
    seen = [others_running(root)]
    while len(seen) < _LOOKS and seen[-1]:
        sleep(_BETWEEN_S)
        seen.append(others_running(root))
    known = [count for count in seen if count is not None]
    return min(known, default=None)


def _foreign_siblings(topology: Topology, root: Path) -> list[int] | None:
    """Cpus that share a core with ours but are not usable; None if the kernel lists no siblings."""
    folder = root / "sys/devices/system/cpu"
    listed = [read_text(folder / f"cpu{cpu}/topology/thread_siblings_list") for cpu in topology.cpus]
    known = [parse_cpu_list(text) for text in listed if text is not None]
    return sorted({cpu for siblings in known for cpu in siblings} - {*topology.cpus}) if known else None
