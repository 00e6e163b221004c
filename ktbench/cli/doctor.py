"""`doctor`: capabilities of this machine, the features that they allow, and what distorts measurements here."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ktbench import __version__
from ktbench.engine.roles import split_cpus
from ktbench.eval.sandbox.running import SandboxUnavailable, sandbox_mechanisms
from ktbench.host.capabilities import feature_reasons, kernel_isas, machine_capabilities
from ktbench.host.code import Extension, isa_reasons, load_extension, read_build, read_commit
from ktbench.host.crossovers import crossover_lines, read_crossovers
from ktbench.host.cuda import read_cuda_devices
from ktbench.host.energy import open_meters
from ktbench.host.health import health_facts, read_settings
from ktbench.host.memory import read_memory
from ktbench.host.roofs import core_to_core_ns
from ktbench.host.software import PACKAGES, find_peer, package_version, peer_reason, program_versions
from ktbench.host.topology import read_topology
from ktbench.report.text import names_by
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import RequestError
from ktbench.spec.features import BY_NAME, FEATURES
from ktbench.spec.health import MACHINE_CHECKS, Finding, unknown, warnings
from ktbench.spec.peers import PEERS, Peer, PeerSpec

Line = tuple[str, str]
_GIB = 2**30
_COMPILERS = ("g++", "cmake", "nvcc")
_ACCURACY = ("lm_eval",)


def run(overrides: Sequence[str]) -> int:
    """Print five sections: machine, features, kernels, peers, health. Raises RequestError for any argument."""
    if overrides:
        raise RequestError(f"doctor {overrides[0]}: unknown argument; doctor takes none")
    print("\n".join(report()))
    return 0


def report() -> list[str]:
    """The lines of the report."""
    return [
        *_section("machine", [*_hardware(), *_software()]),
        *_section("features", _features(feature_reasons(machine_capabilities()))),
        *_section("kernels", _kernel_lines(load_extension())),
        *_section("peers", _peers()),
        *_section("health", health_lines()),
    ]


def _section(title: str, lines: Iterable[Line]) -> list[str]:
    rows = list(lines)
    width = max(len(name) for name, _ in rows)
    return [title, *(f"  {name:<{width}}  {text}".rstrip() for name, text in rows)]


def _hardware() -> list[Line]:
    topology, memory, cuda = read_topology(), read_memory(), read_cuda_devices()
    settings = read_settings(cpus=topology.cpus)
    cache = topology.last_level_cache_bytes
    nodes = "; ".join(f"node {node.id}: {len(node.cpus)} cpus" for node in topology.nodes)
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_bytes / _GIB:.0f} GiB)" for gpu in cuda.gpus)
    return [
        ("cpu", settings.cpu_model or dash("not reported by the kernel")),
        ("cores", f"{len(topology.cores)} usable, {len(topology.cpus)} cpus, SMT {'on' if topology.smt else 'off'}"),
        ("last-level cache", f"{cache / 2**20:.0f} MiB" if cache else dash("not reported by the kernel")),
        ("NUMA", nodes),
        ("memory", f"{memory.available_bytes / _GIB:.1f} GiB free of {memory.total_bytes / _GIB:.1f} ({memory.limit})"),
        ("hypervisor", settings.hypervisor or dash("not reported by the kernel")),
        ("governor", settings.governor or dash("no cpufreq here, as in most virtual machines")),
        ("turbo", _on_off(settings.turbo) or dash("no cpufreq here, as in most virtual machines")),
        ("huge pages", settings.thp or dash("this kernel has no transparent huge pages")),
        ("GPU", gpus or dash(cuda.reason)),
        ("roles=split", _default_split(topology.core_cpus)),
    ]


def _default_split(cpus: Sequence[int]) -> str:
    """The cores of the host and device roles by default, or why they cannot be separate."""
    try:
        roles = split_cpus(cpus, EngineSpec(roles="split"))
    except ValueError as error:
        return dash(str(error))
    device, host = (", ".join(map(str, of)) for of in (roles.device, roles.host))
    return f"device role on cpu {device}; host role on cpu {host} (change with engine.device_threads)"


def _kernel_lines(extension: Extension) -> list[Line]:
    """Granted instruction sets and why others are not, then for each format which of them and which loops run."""
    if extension.module is None:
        return [("instruction sets", dash(extension.reason))]
    isas = isa_reasons(extension)
    granted = ", ".join(isa for isa, reason in isas.items() if not reason)
    loops = crossover_lines(read_crossovers(extension.module, read_topology().core_cpus))
    return [
        ("instruction sets", granted),
        *((isa, dash(reason)) for isa, reason in isas.items() if reason),
        *_by_format("runs", ((name, _isas_used(of)) for name, of in kernel_isas(extension).items())),
        *_by_format("loops", loops),
    ]


def _isas_used(features: Mapping[str, Sequence[str]]) -> str:
    def used(feature: str, names: Sequence[str]) -> str:
        tag = BY_NAME[feature].tag(True)
        return f"{tag} runs {names[0]}" if len(names) == 1 else f"{tag} runs the faster of {' and '.join(names)}"

    return "; ".join(used(*pair) for pair in features.items()) or dash("no feature has any here")


def _by_format(what: str, texts: Iterable[tuple[str, str]]) -> list[Line]:
    """(format, text) with formats of one text in one line, the most of them last and as `other formats`."""
    groups = sorted(names_by(texts).items(), key=lambda group: len(group[1]))
    lines = [(f"{what}: {', '.join(names)}", text) for text, names in groups]
    return [*lines[:-1], (f"{what}: other formats" if len(lines) > 1 else what, lines[-1][1])] if lines else []


def _software() -> list[Line]:
    programs = program_versions(_COMPILERS)
    packages = {name: package_version(name) for name in (*PACKAGES, *_ACCURACY)}
    return [
        ("python", platform.python_version()),
        *((name, version or dash("not installed")) for name, version in packages.items()),
        *((name, version or dash("not on the PATH")) for name, version in programs.items()),
    ]


def _features(reasons: dict[str, str]) -> list[Line]:
    return [(f.word, f"{f.title}: {reasons[f.name] or 'available'}") for f in FEATURES]


def _peers() -> list[Line]:
    return [(peer.name, f"{peer.title} ({', '.join(peer.phases) or 'unusable'}): {_peer(peer)}") for peer in PEERS]


def _peer(peer: Peer) -> str:
    """Its version and where it is installed, `available` where it comes with ktbench, or what it lacks."""
    setting, _, kind = peer.install.partition("=")
    if kind == "PATH" and (version := program_versions((peer.name,))[peer.name]):
        return f"{version} ({setting}={peer.name})"
    if reason := peer_reason(peer, PeerSpec()):
        return dash(reason)
    found = find_peer(peer, PeerSpec())
    if found is None or not found.version:
        return "available"
    return found.version if found.python == sys.executable else f"{found.version} in {found.python}"


def _on_off(value: bool | None) -> str:
    return "" if value is None else ("on" if value else "off")


def health_lines() -> list[Line]:
    """Warnings with their effect and fix, the number of passed checks, checks that cannot be made, meters and sandbox.

    Facts are read as for a run; the core placement is measured, as next to every trial.
    """
    topology, kernels = read_topology(), load_extension().module
    hop_ns = None if kernels is None else core_to_core_ns(kernels, topology.core_cpus)
    facts = health_facts(topology) | {"core_to_core_ns": hop_ns}
    found = warnings(MACHINE_CHECKS, facts)
    good = len(MACHINE_CHECKS) - len(found) - len(unknown(MACHINE_CHECKS, facts))
    return [
        *(line for warned in found for line in _warning(warned)),
        ("good", f"{good} of {len(MACHINE_CHECKS)} checks passed"),
        *_unreadable(facts["missing"]),
        ("energy", _energy()),
        ("generated programs", _sandbox()),
    ]


def _warning(warned: Finding) -> list[Line]:
    return [("warning", f"{warned.text}; {warned.check.harm}"), ("  fix", warned.check.cure)]


def _unreadable(missing: Mapping[str, str]) -> list[Line]:
    """Checks that cannot be made, those with one reason together."""
    why: dict[str, list[str]] = {}
    for name, reason in missing.items():
        why.setdefault(reason, []).append(name)
    return [("unknown", f"{', '.join(names)}: {dash(reason)}") for reason, names in why.items()]


def _energy() -> str:
    """The energy meters of this machine, and why others are missing."""
    meters = open_meters(read_cuda_devices())
    names = ", ".join(meter.name for meter in meters.meters)
    return "; ".join(filter(None, [names, meters.reason and dash(meters.reason)]))


def _sandbox() -> str:
    """How programs that models write are isolated, or why none is run."""
    try:
        return f"isolated by {', '.join(sandbox_mechanisms())}"
    except SandboxUnavailable as error:
        return dash(str(error))


def dash(reason: str) -> str:
    """The placeholder for what this machine lacks or does not report."""
    return f"- ({reason})"


def version_lines() -> list[str]:
    """Output of `--version`: version, commit, kernel build and Python; a dash with its reason for what is not known."""
    return [
        f"ktbench {__version__}",
        f"commit  {read_commit() or '- (neither a checkout nor a wheel built in one)'}",
        f"kernels {_kernels(load_extension())}",
        f"python  {platform.python_version()}",
    ]


def _kernels(extension: Extension) -> str:
    if extension.module is None or extension.module.__file__ is None:
        return dash(extension.reason)
    build = read_build(Path(extension.module.__file__).parent)
    return f"{extension.module.build_id()[:12]}{f', {build.tools}' if build else ''}"
