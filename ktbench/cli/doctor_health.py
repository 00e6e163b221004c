"""The section `health` of `doctor`: what would spoil measurements and how to mend it, meters, and the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ktbench.spec.machine_health import Warned

Line = tuple[str, str]


def health_lines() -> list[Line]:
    """Each thing found wrong with what it does and how to mend it, what nobody could look at, and what stood the test.

    Facts are read as for a run; where cores lie is measured here, as it is next to every turn.
    """
    from ktbench.host.code import load_extension
    from ktbench.host.health import health_facts
    from ktbench.host.roofs import core_to_core_ns
    from ktbench.host.topology import read_topology
    from ktbench.spec.machine_health import MACHINE_CHECKS, unknown, warnings

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


def _warning(warned: Warned) -> list[Line]:
    return [("warning", f"{warned.said}; {warned.check.harm}"), ("  fix", warned.check.cure)]


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
