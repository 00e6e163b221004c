"""`doctor`: what this machine grants, which features that allows, and what would spoil measurements."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence

from ktbench.core.errors import RequestError

SUMMARY = "what this machine grants, and each feature: available, or what it lacks"
_GIB = 2**30
_COMPILERS = ("g++", "cmake", "nvcc")
_LLAMA_CPP = ("llama-bench",)

Line = tuple[str, str]


def run(overrides: Sequence[str]) -> int:
    """Print three sections: machine, features, health. Raises RequestError for any argument."""
    if overrides:
        raise RequestError(f"doctor {overrides[0]}: unknown argument; doctor takes none")
    print("\n".join(report()))
    return 0


def report() -> list[str]:
    """The lines of the answer."""
    from ktbench.host.grants import feature_reasons, machine_grants

    machine = [*_hardware(), *_grant_lines(), *_software()]
    return [
        *_section("machine", machine),
        *_section("features", _features(feature_reasons(machine_grants()))),
        *_section("health", _health()),
    ]


def _section(title: str, lines: Iterable[Line]) -> list[str]:
    rows = list(lines)
    width = max(len(name) for name, _ in rows)
    return [title, *(f"  {name:<{width}}  {text}".rstrip() for name, text in rows)]


def _hardware() -> list[Line]:
    from ktbench.host.cuda import read_cuda_devices
    from ktbench.host.memory import read_memory
    from ktbench.host.settings import read_settings
    from ktbench.host.topology import read_topology

    topology, memory, cuda = read_topology(), read_memory(), read_cuda_devices()
    settings = read_settings(cpu=topology.cpus[0])
    cache = topology.last_level_cache_bytes
    nodes = "; ".join(f"node {node.id}: {len(node.cpus)} cpus" for node in topology.nodes)
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_bytes / _GIB:.0f} GiB)" for gpu in cuda.gpus)
    return [
        ("cpu", settings.cpu_model or _dash("the kernel names none")),
        ("cores", f"{len(topology.cores)} usable, {len(topology.cpus)} cpus, SMT {'on' if topology.smt else 'off'}"),
        ("last-level cache", f"{cache / 2**20:.0f} MiB" if cache else _dash("the kernel lists no caches")),
        ("NUMA", nodes),
        ("memory", f"{memory.available_bytes / _GIB:.1f} GiB free of {memory.total_bytes / _GIB:.1f} ({memory.limit})"),
        ("hypervisor", settings.hypervisor or _dash("the kernel does not say")),
        ("governor", settings.governor or _dash("no cpufreq here, as in most virtual machines")),
        ("turbo", _on_off(settings.turbo) or _dash("no cpufreq here, as in most virtual machines")),
        ("huge pages", settings.thp or _dash("this kernel has no transparent huge pages")),
        ("GPU", gpus or _dash(cuda.reason)),
    ]


def _grant_lines() -> list[Line]:
    """Every instruction set that has kernels, with its own reason when refused."""
    from ktbench.host.extension import isa_grants, load_extension

    extension = load_extension()
    if extension.module is None:
        return [("instruction sets", _dash(extension.reason))]
    return [(f"isa {isa}", reason or "granted") for isa, reason in isa_grants(extension).items()]


def _software() -> list[Line]:
    from ktbench.host.software import PACKAGES, PEERS, package_version, program_versions

    programs = program_versions((*_COMPILERS, *_LLAMA_CPP))
    packages = {name: package_version(name) for name in (*PACKAGES, *PEERS)}
    return [
        ("python", platform.python_version()),
        *((name, version or _dash("not installed")) for name, version in packages.items()),
        *((name, version or _dash("not on the PATH")) for name, version in programs.items()),
    ]


def _features(reasons: dict[str, str]) -> list[Line]:
    from ktbench.core.features import FEATURES

    return [
        (f"{f.name}=N" if f.valued else f"+{f.letter}", f"{f.title}: {reasons[f.name] or 'available'}")
        for f in FEATURES
    ]


def _health() -> list[Line]:
    from ktbench.host.health import health_warnings
    from ktbench.host.memory import read_cpu_quota, read_memory
    from ktbench.host.settings import read_settings
    from ktbench.host.topology import read_topology

    topology = read_topology()
    warnings = health_warnings(read_settings(cpu=topology.cpus[0]), topology, read_memory(), read_cpu_quota())
    return [("warning", line) for line in warnings] or [("good", "nothing found that would spoil measurements")]


def _on_off(value: bool | None) -> str:
    return "" if value is None else ("on" if value else "off")


def _dash(reason: str) -> str:
    return f"- ({reason})"
