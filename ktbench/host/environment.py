"""The machine and the code of records, as plain content for reports."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Any

from ktbench.host.capabilities import capabilities_of
from ktbench.host.code import Extension, code_id, isa_reasons, load_extension, read_commit
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.health import health_facts
from ktbench.host.software import PACKAGES, package_version, torch_build
from ktbench.host.topology import read_topology
from ktbench.spec.record import Environment
from ktbench.spec.wire import digest

# What must match to resume a run. Deliberately left out: load, free memory, kernel release, versions, settings.
_IDENTITY = ("cpu_model", "cpus", "cores", "numa_nodes", "memory_total_gib", "granted", "gpus")


def environment() -> Environment:
    """Facts about this machine, its software and this code, now."""
    extension = load_extension()
    facts = {**_machine_facts(extension), **_software_facts()}
    return Environment(env_id=env_id(facts), code_id=code_id(extension), facts=facts)


def env_id(facts: dict[str, Any]) -> str:
    """Identity of the machine: equal if measurements are comparable."""
    return digest({key: facts[key] for key in _IDENTITY})


def _machine_facts(extension: Extension) -> dict[str, Any]:
    topology, cuda = read_topology(), read_cuda_devices()
    capabilities = capabilities_of(extension, topology, cuda, torch_build())
    return {
        **health_facts(topology),
        "smt": topology.smt,
        "last_level_cache_bytes": topology.last_level_cache_bytes,
        "granted": sorted(_beyond_implied(name for name, reason in capabilities.items() if not reason)),
        "refused": {name: reason for name, reason in capabilities.items() if reason},
        "isa": isa_reasons(extension),
        "gpus": [gpu.name for gpu in cuda.gpus],
    }


def _beyond_implied(granted: Iterable[str]) -> set[str]:
    """AVX-512 implies AVX2, which is left out so that machines keep their identity."""
    names = set(granted)
    return names - {"avx2"} if "avx512" in names else names


def _software_facts() -> dict[str, Any]:
    commit = read_commit()
    return {
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "commit": commit and commit.sha,
        "dirty": commit and commit.dirty,
    }
