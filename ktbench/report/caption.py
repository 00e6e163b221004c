"""What holds for a table as a whole, in sentences: model, work, machine, how numbers were made, ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktbench.core.outcome import Outcome
from ktbench.core.record import Part
from ktbench.core.spec import RunSpec, WorkloadSpec
from ktbench.report.agreement import MARK, equal_work_sentences, unproven_sentence
from ktbench.report.conduct import controls_sentence, placement_sentence, roofs_sentence
from ktbench.report.machine import facts_of, machine_sentence, software_sentence
from ktbench.report.parts import the_part
from ktbench.report.row import Row, groups_of
from ktbench.report.settings import TOKENS, varying
from ktbench.report.slots import shows_speeds
from ktbench.report.system import system_sentence
from ktbench.stats.intervals import CONFIDENCE
from ktbench.stats.verdict import MARGIN
from ktbench.store import Run


def conditions_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """What was run, on what, what noise alone did and the ids; what varies between rows is left to the columns.

    `run` is a run of one part and `rows` are its rows.
    """
    spec = rows[0].spec
    free = set(varying([group[0].settings for group in groups_of(rows)]))
    sentences = (
        _layer(spec, free) if rows[0].is_layer else _model(spec, free),
        _workload(rows, free),
        system_sentence(run, rows, free),
        *equal_work_sentences(rows),
        machine_sentence(facts_of(run)),
        controls_sentence(rows),
        placement_sentence(rows),
        _ids(run, rows),
    )
    return tuple(filter(None, sentences))


def methods_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were made, against which roofs, with which software."""
    sentences = (_numbers(run, rows), roofs_sentence(rows), software_sentence(facts_of(run)))
    return tuple(filter(None, sentences))


def figure_caption(run: Run, rows: Sequence[Row]) -> str:
    """What the figure shows, in one or two sentences."""
    part = the_part(run)
    open_ones = any(row.outcome is Outcome.NOISY for row in rows)
    mark = "A value with ~" if part.figure in ("bars", "roles") else "A ringed value"
    noisy = f" {mark} is NOISY: its interval stayed open." if open_ones else ""
    marked = f" ({MARK})" if part.figure == "bars" else ""
    control = " The control is not drawn." if any(row.role == "control" for row in rows) else ""
    return f"{run.header.title}: {_shows(part, rows)}.{noisy}{unproven_sentence(rows, marked)}{control}"


def _shows(part: Part, rows: Sequence[Row]) -> str:
    row = rows[0]
    if part.figure == "bars" and shows_speeds(rows):
        return "speed in tokens/s; whiskers: interval of the median"
    if part.figure == "bars":
        on_bars = "ms a layer" if row.is_layer else "tokens/s"
        return (
            f"speed-up over {part.baseline}; whiskers: interval of the ratios formed inside rounds; "
            f"numbers on bars: {on_bars}"
        )
    if part.figure == "roles":
        return "speed with the interval of the median, and the shares of the timed steps in which each role worked"
    if part.figure == "depth":
        return "speed; whiskers and bands: interval of the median"
    roofs = "sampled next to the turns, median and, in grey, least to most"
    if part.figure == "latency":
        return (
            f"time of one layer over tokens per expert; whiskers: interval of the median; dashed: reading the weights "
            f"once at the {row.provenance or 'planned'} read bandwidth, {roofs}"
        )
    return (
        f"arithmetic done over tokens per expert, a panel for each precision of the weights; whiskers: interval of the "
        f"median; dashed: {row.provenance or 'planned'} roofs, {roofs}: arithmetic peaks, and read bandwidth times the "
        "operations that each byte of an expert's weights serves"
    )


def _model(spec: RunSpec, free: set[str]) -> str:
    if "model" in free:
        return ""
    model = spec.model
    if "model.layers" in free:
        return f"Model: {model.name} ({_weights(spec)})."
    if not model.is_slice:
        return f"Model: {model.name}, all {model.full_layers} layers ({_weights(spec)})."
    depth = f"{model.shape.layers} of {model.full_layers} layers"
    if model.shape.vocab != model.full_vocab:
        depth += f", vocabulary {model.shape.vocab:,} of {model.full_vocab:,}"
    return f"Model: {model.name}, slice of {depth} ({_weights(spec)}); speeds are the slice's, nothing is extrapolated."


def _layer(spec: RunSpec, free: set[str]) -> str:
    if "model" in free:
        return ""
    shape = spec.model.shape
    return (
        f"Model: the routed experts of one MoE layer of {spec.model.name}, {shape.experts} experts of "
        f"{shape.hidden}×{shape.expert_ffn}, top-{shape.top_k} ({_weights(spec)})."
    )


def _weights(spec: RunSpec) -> str:
    return f"checkpoint {spec.model.path}" if spec.model.path else f"synthetic weights, seed {spec.model.seed}"


def _workload(rows: Sequence[Row], free: set[str]) -> str:
    spec = rows[0].spec
    work = spec.workload
    parts = {
        "workload.phase": work.phase,
        **_amount(spec),
        **_prefilled(work),
        "workload.steps": _steps({row.spec.workload.steps for row in rows}),
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


def _steps(counts: set[int]) -> str:
    if len(counts) > 1:
        return f"{min(counts)} to {max(counts)} steps a turn"
    return f"{max(counts)} step{'' if max(counts) == 1 else 's'} a turn"


def _routing(rows: Sequence[Row]) -> str:
    work = rows[0].spec.workload
    if work.routing == "model":
        return "routing by the model"
    active = {row.spec.workload.active_experts for row in rows}
    if counts := sorted(count for count in active if count is not None):
        least, most = (str(count) for count in (counts[0], counts[-1]))
        known = f"{least if least == most else f'{least} to {most}'} experts, others every step"
        return f"balanced routing to {known}{', or to all' if None in active else ''}"
    return f"{work.routing} routing" + (f" of {Path(work.trace).name}" if work.trace else "")


def _numbers(run: Run, rows: Sequence[Row]) -> str:
    measure, base = run.header.measure, the_part(run).baseline
    return (
        f"Values are medians over rounds of each round's median step, in brackets the distribution-free interval of at "
        f"least {CONFIDENCE:.0%}. "
        f"Speed-ups over {base} and gains are formed inside rounds; faster and slower: the whole interval lies beyond "
        f"±{MARGIN:.0%} and beyond the control's; same: within ±{MARGIN:.0%}. "
        f"NOISY: the interval of the speed-up (for {base}, of its control's) did not come within ±{measure.goal:.1%}. "
        f"Error: the largest relative (Frobenius) error of the experts' outputs against the float32 reference on the "
        f"same inputs{_stored(rows)}, at most {_allowed(rows)} is allowed."
    )


def _stored(rows: Sequence[Row]) -> str:
    """Where weights are quantised the error is that of the arithmetic alone."""
    quantised = any(row.spec.precision != "bf16" for row in rows)
    return " and the weights as they are stored" if quantised else ""


def _allowed(rows: Sequence[Row]) -> str:
    """The tolerance, or that of each precision where they differ."""
    found: dict[float, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row.spec.tolerance, {})[row.spec.precision] = None
    if len(found) == 1:
        return f"{next(iter(found)):g}"
    return " or ".join(f"{tolerance:g} ({', '.join(names)})" for tolerance, names in found.items())


def _ids(run: Run, rows: Sequence[Row]) -> str:
    records = [record for row in rows for record in row.records]
    codes = dict.fromkeys([run.header.code_id, *(record.code_id for record in records)])
    machines = dict.fromkeys([run.header.env_id, *(record.env_id for record in records)])
    base = next((row for row in rows if row.is_baseline), None)
    spec = f", spec of {base.label} {base.spec_id}" if base else ""
    return f"Ids: run {run.header.run}, code {' and '.join(codes)}, machine {' and '.join(machines)}{spec}."
