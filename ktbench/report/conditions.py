"""What holds for a table as a whole, in sentences: model, work, machine, ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, partial
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
from ktbench.report.template import phrase
from ktbench.report.text import counted, extremes
from ktbench.resources import shipped
from ktbench.results import Run
from ktbench.results.quantities.writing import MARK
from ktbench.results.row import Row, groups_of, machines_of, measured, systems_of
from ktbench.results.run import Facts, each_machine, facts_of
from ktbench.results.settings import model_title, precision_word, varying
from ktbench.results.usage import peak_spreads, read_spread
from ktbench.spec.machine import MachineSpec, Microarchitecture
from ktbench.spec.peers import OURS
from ktbench.spec.record import Outcome, Record, TaskResult
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import from_plain

_phrase = partial(phrase, "conditions.txt.j2")


def system_sentence(run: Run, rows: Sequence[Row], free: Container[str]) -> str:
    """The system, its precision, its threads and its roles, as far as they are not among the settings `free`."""
    here = measured(rows)
    cpus = facts_of(run).get("cpus") if len(here) == len(rows) else None
    formats = list(dict.fromkeys((row.spec.device_precision, row.spec.precision) for row in rows))
    return _phrase(
        "system",
        systems=systems_of(rows),
        spec=rows[0].spec,
        settings=rows[0].settings,
        free=free,
        plain=next((row.spec.precision for row in rows if not precision_word(row.label)), None),
        cpus=len(cpus or ()),
        has_peers=bool({*systems_of(here)} - {OURS}),
        ours=next((row for row in [*here, *rows] if row.spec.system == OURS), rows[0]),
        packed=any(row.spec.engine.packed_dense for row in rows),
        formats=formats,
        is_same=all(dense == experts for dense, experts in formats),
    )


def machines_sentence(run: Run) -> str:
    """The machine whose trials count; of several each, once."""
    return " ".join(dict.fromkeys(map(machine_sentence, each_machine(run))))


def machine_sentence(facts: Facts) -> str:
    """Processor, cores, NUMA nodes, memory, GPUs and whether it is a virtual machine, as far as they are known."""
    return _phrase("machine", facts=facts)


_CPU = re.compile(r"(?P<name>.*?) \(family (?P<family>\d+), model (?P<model>\d+), stepping \d+\)")
_NO_NAME = re.compile(r"\((?:R|TM)\)| (?:CPU|Processor)\b")
_MEMORY_KIND = re.compile(r" HBM\w*$")


def cpu_title(facts: Facts) -> str:
    """`Intel Xeon (Emerald Rapids)`: with the microarchitecture where it is known; conditions have the numbers."""
    found = _CPU.fullmatch(facts["cpu_model"])
    if found is None:
        return _NO_NAME.sub("", facts["cpu_model"])
    amx = "amx" in facts["granted"] if "granted" in facts else None
    numbers, cache_bytes = (int(found["family"]), int(found["model"])), facts.get("last_level_cache_bytes") or 0
    known = (f" ({row.name})" for row in _processors() if row.fits(*numbers, amx=amx, cache_bytes=cache_bytes))
    return f"{_NO_NAME.sub('', found['name'])}{next(known, '')}"


@cache
def _processors() -> tuple[Microarchitecture, ...]:
    return from_plain(shipped("processors")["rows"], tuple[Microarchitecture, ...])


def machine_title(facts: Facts) -> str:
    """`Intel Xeon (Emerald Rapids), 16 cores, NVIDIA H100 80GB`: what is known of it; empty where nothing is."""
    if not facts.get("cpu_model"):
        return ""
    cores = [counted(facts["cores"], "core")] if "cores" in facts else []
    gpus = [_MEMORY_KIND.sub("", gpu) for gpu in facts.get("gpus") or ()]
    return ", ".join([cpu_title(facts), *cores, *gpus])


def arm_namer(rows: Sequence[Row]) -> Callable[[Row], str]:
    """How figures name arms: as `Row.shown`, ours after our name where other systems stand beside them."""
    are_others = any(row.spec.system != OURS for row in rows)
    return lambda row: f"{OURS} {row.shown}" if are_others and row.spec.system == OURS else row.shown


def headline(run: Run, rows: Sequence[Row]) -> str:
    """What stands above a figure of `rows`: the model, the work and the precision that all share, and the machine."""
    if not rows:
        return ""
    free = set(varying([group[0].settings for group in groups_of(rows)]))
    spec, precisions = rows[0].spec, {row.spec.precision for row in rows}
    model = [] if "model" in free else [_model_words(spec, free)]
    phase = [] if rows[0].is_layer or "workload.phase" in free else [spec.workload.phase]
    work = [*model, *(phase if model else map(str.capitalize, phase)), *(precisions if len(precisions) == 1 else ())]
    return ", ".join(filter(None, [*work, where_words(run, rows)]))


def cell_headline(label: str, spec: RunSpec, facts: Facts) -> str:
    """What stands above the picture of one cell: arm, model, work, precision, and the machine, here that of `facts`."""
    where = f"simulated on {spec.machine.title}" if spec.machine else f"on {machine_title(facts)}"
    return ", ".join([label, _model_words(spec, ()), spec.workload.phase, spec.precision, where])


def where_words(run: Run, rows: Sequence[Row]) -> str:
    """`on MACHINE` or `simulated on MACHINE`; of several machines all titles. Empty where none is known."""
    here, machines = measured(rows), [machine.title for machine in machines_of(rows)]
    found = [*([machine_title(facts) for facts in each_machine(run)] if here else []), *machines]
    where = "; ".join(dict.fromkeys(filter(None, found)))
    kind = "simulated on" if machines and not here else "on"
    return f"{kind} {where}" if where else ""


def _model_words(spec: RunSpec, free: Container[str]) -> str:
    title, model = model_title(spec.model.name), spec.model
    if spec.workload.phase == "layer":
        return f"One MoE layer of {title}"
    if "model.layers" in free or not model.is_slice:
        return title
    return f"{title}, {model.depth}"


def software_sentence(facts: Facts) -> str:
    """Versions and commit; empty where they are not known."""
    versions = {name: version for name, version in (facts.get("versions") or {}).items() if version}
    return _phrase("software", versions=versions, commit=facts.get("commit"), dirty=facts.get("dirty"))


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
    return _phrase("simulated", where=simulated_on(machines, among=len(measured(rows)))) if machines else ""


def simulated_limits(rows: Sequence[Row]) -> tuple[str, ...]:
    """The limits that simulated rows are compared with, a sentence for each machine; none without such rows.

    Least to most where a sweep varies the constants of a machine.
    """
    records: dict[str, list[Record]] = {}
    for row in rows:
        if row.spec.machine is not None:
            records.setdefault(row.spec.machine.title, []).extend(row.records)
    return tuple(
        _phrase("described_roofs", title=title, read=read_spread(found), peaks=peak_spreads(found))
        for title, found in records.items()
    )


def ringed_outcome(rows: Sequence[Row]) -> Outcome | None:
    """NOISY or OK, the one that fewer arms have, so that a ring tells something; None where all have the same."""
    noisy = [row.outcome is Outcome.NOISY for row in rows if row.role == "arm" and row.timed]
    if len({*noisy}) < 2:
        return None
    return Outcome.NOISY if 2 * sum(noisy) <= len(noisy) else Outcome.OK


UNPROVEN = (
    "not shown to give the same answers as the other systems: its speed is not a comparison of equal work"
    f" ({MARK})"
)  # fmt: skip


def equal_work_sentences(rows: Sequence[Row]) -> tuple[str, ...]:
    """What is equal where systems are compared, and how their answers are; nothing of one system alone."""
    if all(len(systems_of(group)) < 2 or group[0].simulated for group in groups_of(rows)):
        return ()
    if rows[0].is_layer:
        return (_phrase("equal_layers", is_quantised=any(row.spec.is_quantised for row in rows)),)
    found = [row.agreement for row in rows if row.agreement and row.agreement.against]
    references = dict.fromkeys(one.against for one in found)
    positions = extremes(one.positions for one in found)
    return _phrase("equal_models"), _phrase("logits", references=[*references], positions=positions)


def unproven_sentence(rows: Sequence[Row], marked: str) -> str:
    """For figures, with a space before it: which arms nothing shows to give the others' answers; empty without any.

    `marked` is the mark of their values in brackets, empty where they have none.
    """
    names = dict.fromkeys(row.shown for row in rows if row.unproven and row.role == "arm")
    if not names:
        return ""
    return f" Not shown to give the same answers as the other systems{marked}: {', '.join(names)}."


def conditions_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """What was run, on what, what noise alone did and the ids; what varies between rows is left to the columns.

    `run` is a run of one part and `rows` are its rows.
    """
    here = measured(rows)
    free = set(varying([group[0].settings for group in groups_of(rows)]))
    sentences = (
        _phrase(
            "model",
            spec=next(iter([*here, *rows])).spec,
            free=free,
            is_layer=rows[0].is_layer,
            is_extrapolated=any(row.whole_tokens_per_s for row in rows),
        ),
        _workload(rows, free),
        system_sentence(run, rows, free),
        *equal_work_sentences(rows),
        *((machines_sentence(run), *machine_warnings(run), unreadable_sentence(run)) if here else ()),
        simulated_sentence(rows),
        controls_sentence(rows),
        placement_sentence(rows),
        *roof_warnings(rows),
        memory_sentence(rows),
        energy_sentence(rows),
        damage_sentence(run),
        ids_sentence(
            run,
            (record for row in rows for record in row.records),
            next((row for row in rows if row.is_baseline), None),
            measured=bool(here),
        ),
    )
    return tuple(filter(None, sentences))


def _workload(rows: Sequence[Row], free: Container[str]) -> str:
    spec, here = rows[0].spec, measured(rows)
    active = {row.spec.workload.active_experts for row in rows}
    return _phrase(
        "workload",
        spec=spec,
        free=free,
        steps=extremes(row.spec.workload.steps for row in here),
        is_measured=bool(here),
        active=extremes(count for count in active if count is not None),
        all_active=None in active,
        trace=Path(spec.workload.trace or "").name,
        examples=Path(spec.workload.examples or "").name,
    )


def damage_sentence(run: Run) -> str:
    """Which lines of the log were left out; empty where all are as they were written."""
    return _phrase("damage", names=[Path(one.where).name for one in run.damage]) if run.damage else ""


def ids_sentence(run: Run, facts: Iterable[Record | TaskResult], base: Row | None, *, measured: bool = True) -> str:
    """Ids of the run, of the code and the machines of it and of `facts`, and of the baseline's spec.

    What is all simulated is the same wherever that was done: it names no machine.
    """
    header, facts = run.header, [*facts]
    codes = dict.fromkeys([header.code_id, *(one.code_id for one in facts)])
    machines = dict.fromkeys([header.env_id, *(one.env_id for one in facts if one.provenance == "measured")])
    return _phrase("ids", header=header, codes=[*codes], machines=[*machines] if measured else (), base=base)
