"""What holds for a table as a whole, in sentences: model, work, machine, ids."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from ktbench.report.health import (
    controls_sentence,
    energy_sentence,
    machine_warnings,
    memory_sentence,
    placement_sentence,
    roof_warnings,
    unreadable_sentence,
)
from ktbench.report.text import DASH, number, span, unit_of
from ktbench.results import Run
from ktbench.results.row import Row, groups_of, machines_of, measured, systems_of
from ktbench.results.run import Facts, each_machine, facts_of
from ktbench.results.settings import TOKENS, precision_word, varying
from ktbench.results.usage import peak_spreads, read_spread
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec, WorkloadSpec


def system_sentence(run: Run, rows: Sequence[Row], free: Container[str]) -> str:
    """The system, its precision, its threads and its roles, as far as they are not among the settings `free`."""
    spec, systems = rows[0].spec, systems_of(rows)
    parts = [f"system{'' if len(systems) == 1 else 's'} {' and '.join(systems)}"]
    if "precision" not in rows[0].settings:
        plain = next((row.spec.precision for row in rows if not precision_word(row.label)), None)
        parts.append(f"precision {plain} where an arm names none" if plain else "precision as the arms name it")
    elif "precision" not in free:
        parts.append(f"precision {spec.precision}")
    if "engine.threads" not in free:
        here = measured(rows)
        cpus = facts_of(run).get("cpus") if len(here) == len(rows) else None
        every = f"threads on all {len(cpus)} cores" if cpus else "threads on all cores"
        parts.append(every if spec.engine.threads is None else f"{spec.engine.threads} threads")
        parts += ["threads of peers as in their remarks"] if set(systems_of(here)) - {"ktbench"} else []
    parts += _roles(rows, free)
    return f"{', '.join(parts).capitalize()}."


def _roles(rows: Sequence[Row], free: Container[str]) -> Iterator[str]:
    """Who runs what, as far as it is not the plain case of one team of threads and the network's own modules."""
    row = next((row for row in [*measured(rows), *rows] if row.spec.system == "ktbench"), rows[0])
    spec, engine, placed = row.spec, row.spec.engine, row.spec.engine.placement
    if engine.roles == "split" and "engine.roles" not in free and "engine.device_threads" not in free:
        count = engine.device_threads
        cores = "half of the cores" if count is None else f"{count} core{'' if count == 1 else 's'}"
        yield f"{cores} for the device role and the others for the host role"
    if "engine.device" not in free and engine.device != "cpu":
        yield f"device role on {engine.device}"
    if "device_precision" not in free and any(row.spec.engine.packed_dense for row in rows):
        yield _linear(rows)
    placing = {"engine.placement.policy", "engine.placement.ratio"}
    if placed.policy != "host" and not any(key in free for key in placing):
        yield f"{placed.ratio:.0%} of the experts at the device ({placed.policy})"
    if "inject" not in free and spec.inject.name != "none" and not row.simulated:
        yield f"injection rules {row.settings['inject']}"


def _linear(rows: Sequence[Row]) -> str:
    """The precision of linear layers, which goes with that of the experts where both vary."""
    pairs = dict.fromkeys((row.spec.device_precision, row.spec.precision) for row in rows)
    if len({dense for dense, _ in pairs}) == 1:
        return f"linear layers in {rows[0].spec.device_precision}"
    if all(dense == experts for dense, experts in pairs):
        return "linear layers in the precision of the experts"
    return f"linear layers in {', '.join(f'{dense} (experts in {experts})' for dense, experts in pairs)}"


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


def simulated_on(machines: Sequence[MachineSpec], *, among: int = 0) -> str:
    """`Simulated on TITLE by the machine model (calibration NAME)`; titles with names where there are others `among`
    which one has to be found.
    """
    titles = dict.fromkeys((machine.name, machine.title) for machine in machines)
    named = [f"{title} ({name})" if len(titles) + among > 1 else title for name, title in titles]
    calibrations = dict.fromkeys(machine.calibration for machine in machines)
    return f"Simulated on {'; '.join(named)} by the machine model (calibration {' and '.join(calibrations)})"


def simulated_sentence(rows: Sequence[Row]) -> str:
    """What was simulated on what, and that nothing was measured; empty where nothing was simulated."""
    machines = machines_of(rows)
    if not machines:
        return ""
    where = simulated_on(machines, among=len(measured(rows)))
    return f"{where}: one step, the same every time, so there are no intervals, rounds or controls."


def simulated_limits(rows: Sequence[Row]) -> tuple[str, ...]:
    """The limits that simulated rows are held against, a sentence for each machine; none without such rows."""
    return tuple(_limits(rows, machine) for machine in _by_name(machines_of(rows)))


def _by_name(machines: Sequence[MachineSpec]) -> list[MachineSpec]:
    return list({machine.name: machine for machine in machines}.values())


def _limits(rows: Sequence[Row], machine: MachineSpec) -> str:
    """The roofs of a machine; least to most where a sweep varies its constants."""
    mine = [row for row in rows if row.spec.machine is not None and row.spec.machine.name == machine.name]
    records = [record for row in mine for record in row.records]
    read, peaks = read_spread(records), peak_spreads(records)
    if read is None:
        return f"{machine.name}: no cell could be simulated."
    limits = [f"read {span(read.low / 1e9, read.high / 1e9)} GB/s"]
    for (isa, dtype), peak in peaks.items():
        limits.append(f"{isa} {dtype} peak {span(peak.low / 1e12, peak.high / 1e12)} {unit_of(dtype)}")
    return f"Roofs of {machine.name}, as described: {', '.join(limits)}."


MARK = "†"
REFERENCE = "reference"
UNPROVEN = (
    "not shown to give the same answers as the other systems: its speed is not a comparison of equal work"
    f" ({MARK})"
)  # fmt: skip


def top1_text(row: Row) -> str:
    """The share of positions in percent, `reference` for the row that others are held against."""
    return _written(row, "" if row.agreement is None else f"{100 * row.agreement.top1:.1f}")


def kl_text(row: Row) -> str:
    """The divergence in nats, `reference` for the row that others are held against."""
    return _written(row, "" if row.agreement is None else _nats(row.agreement.kl_nats))


def _written(row: Row, text: str) -> str:
    if row.agreement is None:
        return DASH
    return text if row.agreement.against else REFERENCE


def _nats(value: float) -> str:
    return f"{value:.1e}" if 0 < value < 1e-2 else number(value, 2)


def equal_work_sentences(rows: Sequence[Row]) -> tuple[str, ...]:
    """What is equal where systems are compared, and how their answers are; nothing of one system alone."""
    if all(len(systems_of(group)) < 2 or group[0].simulated for group in groups_of(rows)):
        return ()
    if rows[0].is_layer:
        own = ", which each quantises in its own format" if any(row.spec.is_quantised for row in rows) else ""
        return (
            f"Equal for all systems: bf16 weights{own}, hidden states, routing and cores; each output is held against "
            "float32 arithmetic on the weights as that system stores them.",
        )
    return (_EQUAL, *_compared(rows))


def unproven_sentence(rows: Sequence[Row], marked: str) -> str:
    """For figures, with a space before it: which arms nothing shows to give the others' answers; empty without any.

    `marked` is the mark of their values in brackets, empty where they have none.
    """
    names = dict.fromkeys(row.shown for row in rows if row.unproven and row.role == "arm")
    if not names:
        return ""
    return f" Not shown to give the same answers as the other systems{marked}: {', '.join(names)}."


_EQUAL = "Equal for all systems: token ids, context depth, layers, 16-bit key-value caches and cores."


def _compared(rows: Sequence[Row]) -> tuple[str, ...]:
    references = dict.fromkeys(row.agreement.against for row in rows if row.agreement and row.agreement.against)
    if not references:
        return ("Logits were not compared.",)
    counts = {row.agreement.positions for row in rows if row.agreement and row.agreement.against}
    least, most = min(counts), max(counts)
    span = f"{most}" if least == most else f"{least} to {most}"
    return (
        f"Logits are held against those of {' and '.join(references)} at {span} position{'' if most == 1 else 's'}: "
        "share of positions at which both hold the same token most likely, and mean KL(reference ‖ row) by the natural "
        "logarithm; the worst of all rounds.",
    )


def conditions_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """What was run, on what, what noise alone did and the ids; what varies between rows is left to the columns.

    `run` is a run of one part and `rows` are its rows.
    """
    spec = next(iter([*measured(rows), *rows])).spec
    free = set(varying([group[0].settings for group in groups_of(rows)]))
    sentences = (
        _layer(spec, free) if rows[0].is_layer else _model(spec, free),
        _workload(rows, free),
        system_sentence(run, rows, free),
        *equal_work_sentences(rows),
        machines_sentence(run) if measured(rows) else "",
        *(machine_warnings(run) if measured(rows) else ()),
        unreadable_sentence(run) if measured(rows) else "",
        simulated_sentence(rows),
        controls_sentence(rows),
        placement_sentence(rows),
        *roof_warnings(rows),
        memory_sentence(rows),
        energy_sentence(rows),
        damage_sentence(run),
        _ids(run, rows),
    )
    return tuple(filter(None, sentences))


def _model(spec: RunSpec, free: set[str]) -> str:
    if "model" in free:
        return ""
    model = spec.model
    if "model.layers" in free:
        return f"Model: {model.name}{_weights(spec)}."
    if not model.is_slice:
        return f"Model: {model.name}, all {model.full_layers} layers{_weights(spec)}."
    depth = f"{model.shape.layers} of {model.full_layers} layers"
    if model.shape.vocab != model.full_vocab:
        depth += f", vocabulary {model.shape.vocab:,} of {model.full_vocab:,}"
    return f"Model: {model.name}, slice of {depth}{_weights(spec)}; speeds are the slice's, nothing is extrapolated."


def _layer(spec: RunSpec, free: set[str]) -> str:
    if "model" in free:
        return ""
    shape = spec.model.shape
    return (
        f"Model: the routed experts of one MoE layer of {spec.model.name}, {shape.experts} experts of "
        f"{shape.hidden}×{shape.expert_ffn}, top-{shape.top_k}{_weights(spec)}."
    )


def _weights(spec: RunSpec) -> str:
    """In brackets where the weights came from; simulated steps have none."""
    if spec.machine is not None:
        return ""
    return f" (checkpoint {spec.model.path})" if spec.model.path else f" (synthetic weights, seed {spec.model.seed})"


def _workload(rows: Sequence[Row], free: set[str]) -> str:
    spec = rows[0].spec
    work = spec.workload
    parts = {
        "workload.phase": work.phase,
        **_amount(spec),
        **_prefilled(work),
        **_steps({row.spec.workload.steps for row in measured(rows)}),
        "workload.routing": _routing(rows),
        "workload.seed": f"seed {work.seed}",
    }
    return f"Workload: {', '.join(text for key, text in parts.items() if key not in free)}."


def _amount(spec: RunSpec) -> dict[str, str]:
    work = spec.workload
    if work.phase == "layer":
        return {TOKENS: f"{spec.tokens_per_expert:g} tokens per expert"}
    context = "prompt of" if work.phase == "prefill" else "context from"
    return {"workload.batch": f"batch {work.batch}", "workload.prompt": f"{context} {work.prompt} tokens"}


def _prefilled(work: WorkloadSpec) -> dict[str, str]:
    """How prompts differ in length, and in which pieces they go through."""
    shortest = {} if work.shortest is None else {"workload.shortest": f"the shortest of {work.shortest}, padded"}
    chunk = {} if work.chunk is None else {"workload.chunk": f"prompts in chunks of {work.chunk}"}
    return shortest | chunk


def _steps(counts: set[int]) -> dict[str, str]:
    """How many steps turns time; nothing where none was measured."""
    span = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""
    return {"workload.steps": f"{span} step{'' if counts == {1} else 's'} a turn"} if counts else {}


def _routing(rows: Sequence[Row]) -> str:
    work = rows[0].spec.workload
    if work.routing == "model":
        return "routing by the model" if measured(rows) else "routing as uneven as the model's"
    active = {row.spec.workload.active_experts for row in rows}
    if counts := sorted(count for count in active if count is not None):
        least, most = (str(count) for count in (counts[0], counts[-1]))
        known = f"{least if least == most else f'{least} to {most}'} experts, others every step"
        return f"balanced routing to {known}{', or to all' if None in active else ''}"
    return f"{work.routing} routing" + (f" of {Path(work.trace).name}" if work.trace else "")


def damage_sentence(run: Run) -> str:
    """Which lines of the log were left out; empty where all are as they were written."""
    if not run.damage:
        return ""
    lines = ", ".join(Path(one.where).name for one in run.damage)
    return f"Left out, because they are not what was written: {lines}; resuming the run measures their turns again."


def _ids(run: Run, rows: Sequence[Row]) -> str:
    """What is all simulated is the same wherever that was done."""
    codes = dict.fromkeys([run.header.code_id, *(record.code_id for row in rows for record in row.records)])
    here = measured(rows)
    machines = dict.fromkeys([run.header.env_id, *(record.env_id for row in here for record in row.records)])
    machine = f", machine {' and '.join(machines)}" if here else ""
    base = next((row for row in rows if row.is_baseline), None)
    spec = f", spec of {base.label} {base.spec_id}" if base else ""
    return f"Ids: run {run.header.run}, code {' and '.join(codes)}{machine}{spec}."
