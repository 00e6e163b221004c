"""The machine and the software of a run, in one sentence each."""

from __future__ import annotations

from typing import Any

from ktbench.results import Run
from ktbench.spec.record import Environment

Facts = dict[str, Any]


def environments_of(run: Run) -> tuple[Environment, ...]:
    """What sittings found on the machines whose turns count: those that measured, else those that simulated.

    Of a run that was spread over nodes these are the nodes. Without any turn it is the machine that planned the run.
    """
    simulated = {record.env_id for record in run.latest().values() if record.outcome.timed}
    ids = run.measured_on() or simulated or {run.header.env_id}
    return tuple(found for found in run.environments if found.env_id in ids)


def each_machine(run: Run) -> list[Facts]:
    """Facts of each machine whose turns count, as last found; one without facts where none was described."""
    return [*machines_of(run).values()] or [{}]


def machines_of(run: Run) -> dict[str, Facts]:
    """Facts of the machines whose turns count, as last found, by their ids; empty where none was described."""
    return {found.env_id: found.facts for found in environments_of(run)}


def facts_of(run: Run) -> Facts:
    """Facts of the machine whose turns count, of several the last that was described; empty where none was."""
    return each_machine(run)[-1]


def machines_sentence(run: Run) -> str:
    """The machine whose turns count; of several each, once."""
    return " ".join(dict.fromkeys(map(machine_sentence, each_machine(run))))


def machine_sentence(facts: Facts) -> str:
    """Processor, cores, NUMA nodes, memory, GPUs and whether it is a virtual machine, as far as they are known."""
    if not facts.get("cpu_model"):
        return "Machine: not described."
    parts = [str(facts["cpu_model"])]
    if "cores" in facts:
        parts.append(_plural(facts["cores"], "core"))
    if "numa_nodes" in facts:
        parts.append(_plural(len(facts["numa_nodes"]), "NUMA node"))
    if "memory_total_gib" in facts:
        parts.append(f"{facts['memory_total_gib']} GiB")
    if "gpus" in facts:
        parts.append(" + ".join(facts["gpus"]) or "no GPU")
    if facts.get("hypervisor") not in (None, "none"):
        parts.append(f"virtual ({facts['hypervisor']})")
    return f"Machine: {', '.join(parts)}."


def software_sentence(facts: Facts) -> str:
    """Versions and commit; empty where they are not known."""
    parts = [f"{name} {version}" for name, version in (facts.get("versions") or {}).items() if version]
    if facts.get("commit"):
        parts.append(f"commit {facts['commit'][:12]}{' with changes' if facts.get('dirty') else ''}")
    return f"Software: {', '.join(parts)}." if parts else ""


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
