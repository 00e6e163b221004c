"""What holds for a table as a whole, in sentences: model, work, machine, what noise alone did, ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktbench.report.agreement import equal_work_sentences
from ktbench.report.conduct import controls_sentence, placement_sentence
from ktbench.report.health import machine_warnings, roof_warnings, unreadable_sentence
from ktbench.report.machine import machines_sentence
from ktbench.report.metered import energy_sentence, memory_sentence
from ktbench.report.simulated import simulated_sentence
from ktbench.report.system import system_sentence
from ktbench.results import Run
from ktbench.results.row import Row, groups_of, measured
from ktbench.results.settings import TOKENS, varying
from ktbench.spec.run_spec import RunSpec, WorkloadSpec


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


def common_to(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Sentences that all parts say, in the order of the first one."""
    return tuple(sentence for sentence in parts[0] if all(sentence in other for other in parts))


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
