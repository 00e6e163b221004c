"""Facts of this machine that the checks of `ktbench.spec.machine_health` judge, and why some cannot be had."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from time import sleep
from typing import Any

from ktbench.host.memory import read_cpu_quota, read_filling, read_memory
from ktbench.host.noise import disturbance, others_running, read_clock_hz, read_counters
from ktbench.host.settings import read_settings
from ktbench.host.sysfs import parse_cpu_list, read_text
from ktbench.host.topology import Topology
from ktbench.spec.machine_health import MACHINE_CHECKS, Check, Facts, unknown
from ktbench.spec.system_metrics import Disturbance
from ktbench.spec.turn_health import TURN_CHECKS

_GIB = 2**30
# Who runs at all of these moments was not there by chance.
_LOOKS, _BETWEEN_S = 4, 0.005


def health_facts(topology: Topology, root: Path = Path("/")) -> dict[str, Any]:
    """What `MACHINE_CHECKS` need but where cores lie, which is measured; None where the machine does not say.

    `missing` has the name of each check of a machine or a turn that can therefore not be made, with the reason. Raises
    ValueError where the kernel does not say how much memory there is.
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
    """Who else has the cores."""
    counters = read_counters(topology.cpus, root)
    return {
        "cpu_quota": read_cpu_quota(root),
        "others_running": _steadily_running(root),
        "foreign_siblings": _foreign_siblings(topology, root),
        "stolen_share": counters.stolen_share,
        "thermal_stops": counters.thermal_stops,
    }


def _missing(facts: Facts, cpus: tuple[int, ...], root: Path) -> dict[str, str]:
    checks = [*unknown(MACHINE_CHECKS, facts), *unknown(TURN_CHECKS, asdict(_nothing(cpus, root)))]
    return {check.name: _why_unknown(check, root) for check in checks if check.name != "core placement"}


def _nothing(cpus: tuple[int, ...], root: Path) -> Disturbance:
    """A turn without steps: what is None there can never be known."""
    now = read_counters(cpus, root)
    return disturbance(now, now, cpus, read_clock_hz(cpus, root))


def _why_unknown(check: Check, root: Path) -> str:
    for name in check.reads:
        if path := next(root.glob(name), None):
            return f"/{name} says nothing of it" if os.access(path, os.R_OK) else f"/{name} may not be read"
    return f"no {' or '.join(f'/{_first_absent(name, root)}' for name in check.reads)}"


def _first_absent(name: str, root: Path) -> str:
    """The path as far as its first folder that is not there: many files lack with one."""
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
    """Cpus that share a core with ours and are not ours to use; None where the kernel lists no siblings."""
    folder = root / "sys/devices/system/cpu"
    listed = [read_text(folder / f"cpu{cpu}/topology/thread_siblings_list") for cpu in topology.cpus]
    known = [parse_cpu_list(text) for text in listed if text is not None]
    return sorted({cpu for siblings in known for cpu in siblings} - {*topology.cpus}) if known else None
