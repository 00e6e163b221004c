"""The machine and the software of a run, in one sentence each."""

from __future__ import annotations

from ktbench.results import Run
from ktbench.results.run import Facts, each_machine


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
