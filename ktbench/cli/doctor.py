"""`doctor`: what this machine grants, which features that allows, and what would spoil measurements."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ktbench.spec.errors import RequestError

if TYPE_CHECKING:
    from ktbench.host.code import Extension
    from ktbench.spec.health import Finding
    from ktbench.spec.peers import Peer

SUMMARY = "what this machine grants, and each feature and peer: available, or what it lacks"
Line = tuple[str, str]
_GIB = 2**30
_COMPILERS = ("g++", "cmake", "nvcc")
_ACCURACY = ("lm_eval",)


def run(overrides: Sequence[str]) -> int:
    """Print four sections: machine, features, peers, health. Raises RequestError for any argument."""
    if overrides:
        raise RequestError(f"doctor {overrides[0]}: unknown argument; doctor takes none")
    print("\n".join(report()))
    return 0


def report() -> list[str]:
    """The lines of the answer."""
    from ktbench.host.capabilities import feature_reasons, machine_capabilities

    machine = [*_hardware(), *_grant_lines(), *_software()]
    return [
        *_section("machine", machine),
        *_section("features", _features(feature_reasons(machine_capabilities()))),
        *_section("peers", _peers()),
        *_section("health", health_lines()),
    ]


def _section(title: str, lines: Iterable[Line]) -> list[str]:
    rows = list(lines)
    width = max(len(name) for name, _ in rows)
    return [title, *(f"  {name:<{width}}  {text}".rstrip() for name, text in rows)]


def _hardware() -> list[Line]:
    from ktbench.host.cuda import read_cuda_devices
    from ktbench.host.health import read_settings
    from ktbench.host.memory import read_memory
    from ktbench.host.topology import read_topology

    topology, memory, cuda = read_topology(), read_memory(), read_cuda_devices()
    settings = read_settings(cpus=topology.cpus)
    cache = topology.last_level_cache_bytes
    nodes = "; ".join(f"node {node.id}: {len(node.cpus)} cpus" for node in topology.nodes)
    gpus = ", ".join(f"{gpu.name} ({gpu.memory_bytes / _GIB:.0f} GiB)" for gpu in cuda.gpus)
    return [
        ("cpu", settings.cpu_model or dash("the kernel names none")),
        ("cores", f"{len(topology.cores)} usable, {len(topology.cpus)} cpus, SMT {'on' if topology.smt else 'off'}"),
        ("last-level cache", f"{cache / 2**20:.0f} MiB" if cache else dash("the kernel lists no caches")),
        ("NUMA", nodes),
        ("memory", f"{memory.available_bytes / _GIB:.1f} GiB free of {memory.total_bytes / _GIB:.1f} ({memory.limit})"),
        ("hypervisor", settings.hypervisor or dash("the kernel does not say")),
        ("governor", settings.governor or dash("no cpufreq here, as in most virtual machines")),
        ("turbo", _on_off(settings.turbo) or dash("no cpufreq here, as in most virtual machines")),
        ("huge pages", settings.thp or dash("this kernel has no transparent huge pages")),
        ("GPU", gpus or dash(cuda.reason)),
        ("roles=split", _split(topology.core_cpus)),
    ]


def _split(cpus: Sequence[int]) -> str:
    """What host and device role get of the cores by default, or why they cannot be apart."""
    from ktbench.engine.roles import split_cpus
    from ktbench.spec.engine import EngineSpec

    try:
        roles = split_cpus(cpus, EngineSpec(roles="split"))
    except ValueError as error:
        return dash(str(error))
    device, host = (", ".join(map(str, of)) for of in (roles.device, roles.host))
    return f"device role on cpu {device}; host role on cpu {host} (engine.device_threads moves the border)"


def _grant_lines() -> list[Line]:
    """The instruction sets that have kernels: those granted, each refused one with its reason, and what uses them."""
    from ktbench.host.code import isa_reasons, load_extension

    extension = load_extension()
    if extension.module is None:
        return [("instruction sets", dash(extension.reason))]
    isas = isa_reasons(extension)
    granted = [isa for isa, reason in isas.items() if not reason]
    refused = [(f"isa {isa}", dash(reason)) for isa, reason in isas.items() if reason]
    return [("instruction sets", ", ".join(granted)), *refused, *_kernel_lines(extension)]


def _kernel_lines(extension: Extension) -> list[Line]:
    from ktbench.host.capabilities import kernel_isas
    from ktbench.spec.features import BY_NAME

    def used(feature: str, names: Sequence[str]) -> str:
        tag = BY_NAME[feature].tag(True)
        return f"{tag} runs {names[0]}" if len(names) == 1 else f"{tag} runs the faster of {' and '.join(names)}"

    return [
        (
            f"{precision} kernels",
            "; ".join(used(*pair) for pair in features.items()) or dash("no feature has any here"),
        )
        for precision, features in kernel_isas(extension).items()
    ]


def _software() -> list[Line]:
    from ktbench.host.software import PACKAGES, package_version, program_versions

    programs = program_versions(_COMPILERS)
    packages = {name: package_version(name) for name in (*PACKAGES, *_ACCURACY)}
    return [
        ("python", platform.python_version()),
        *((name, version or dash("not installed")) for name, version in packages.items()),
        *((name, version or dash("not on the PATH")) for name, version in programs.items()),
    ]


def _features(reasons: dict[str, str]) -> list[Line]:
    from ktbench.spec.features import FEATURES

    return [
        (f"{f.name}=N" if f.valued else f"+{f.letter}", f"{f.title}: {reasons[f.name] or 'available'}")
        for f in FEATURES
    ]


def _peers() -> list[Line]:
    from ktbench.spec.peers import PEERS

    return [(peer.name, f"{peer.title} ({', '.join(peer.phases)}): {_peer(peer)}") for peer in PEERS]


def _peer(peer: Peer) -> str:
    """Its version and where it is installed, `available` where it comes with ktbench, or what it lacks."""
    from ktbench.host.software import find_peer, peer_reason, program_versions
    from ktbench.spec.peers import PeerSpec

    if peer.name == "llama-bench" and (version := program_versions((peer.name,))[peer.name]):
        return f"{version} (peer.llama_bench={peer.name})"
    if reason := peer_reason(peer, PeerSpec()):
        return dash(reason)
    found = find_peer(peer, PeerSpec())
    if found is None or not found.version:
        return "available"
    return found.version if found.python == sys.executable else f"{found.version} in {found.python}"


def _on_off(value: bool | None) -> str:
    return "" if value is None else ("on" if value else "off")


def health_lines() -> list[Line]:
    """Each thing found wrong with what it does and how to mend it, what nobody could look at, and what stood the test.

    Facts are read as for a run; where cores lie is measured here, as it is next to every turn.
    """
    from ktbench.host.code import load_extension
    from ktbench.host.health import health_facts
    from ktbench.host.roofs import core_to_core_ns
    from ktbench.host.topology import read_topology
    from ktbench.spec.health import MACHINE_CHECKS, unknown, warnings

    topology, kernels = read_topology(), load_extension().module
    hop_ns = None if kernels is None else core_to_core_ns(kernels, topology.core_cpus)
    facts = health_facts(topology) | {"core_to_core_ns": hop_ns}
    found = warnings(MACHINE_CHECKS, facts)
    good = len(MACHINE_CHECKS) - len(found) - len(unknown(MACHINE_CHECKS, facts))
    return [
        *(line for warned in found for line in _warning(warned)),
        ("good", f"{good} of {len(MACHINE_CHECKS)} checks found nothing that would spoil measurements"),
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
    return [("not to be read", f"{', '.join(names)}: {dash(reason)}") for reason, names in why.items()]


def _energy() -> str:
    """The meters of this machine, and why others lack."""
    from ktbench.host.cuda import read_cuda_devices
    from ktbench.host.energy import open_meters

    meters = open_meters(read_cuda_devices())
    names = [meter.name for meter in meters.meters]
    return "; ".join([*([", ".join(names)] if names else []), *([dash(meters.reason)] if meters.reason else [])])


def _sandbox() -> str:
    """What keeps in the programs that models write, or why none is run."""
    from ktbench.eval.sandbox.running import SandboxUnavailable, sandbox_mechanisms

    try:
        return f"kept in by {', '.join(sandbox_mechanisms())}"
    except SandboxUnavailable as error:
        return dash(str(error))


def dash(reason: str) -> str:
    """What stands in place of something that this machine does not have or say."""
    return f"- ({reason})"


def version_lines() -> list[str]:
    """Of `--version`: version, commit, kernel build and Python; a dash with its reason where one is not known."""
    from ktbench import __version__
    from ktbench.host.code import load_extension, read_commit

    return [
        f"ktbench {__version__}",
        f"commit  {read_commit() or '- (neither a checkout nor a wheel built in one)'}",
        f"kernels {_kernels(load_extension())}",
        f"python  {platform.python_version()}",
    ]


def _kernels(extension: Extension) -> str:
    from ktbench.host.code import read_build

    if extension.module is None or extension.module.__file__ is None:
        return dash(extension.reason)
    build = read_build(Path(extension.module.__file__).parent)
    return f"{extension.module.build_id()[:12]}{f', {build.tools}' if build else ''}"
