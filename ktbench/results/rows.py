"""From the records of a run to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ktbench.results.command import command_of
from ktbench.results.intervals import Interval, by_block, exact, summary
from ktbench.results.row import Gain, Row, baseline_of, control_of, groups_of, systems_of
from ktbench.results.run import Run
from ktbench.results.serving.latency import serving_of
from ktbench.results.settings import Setting, by_key, cell_settings
from ktbench.results.speedups import Values, Verdict, comparable, goal_values, judge, paired_interval
from ktbench.results.stopping import open_reason
from ktbench.results.usage import (
    energy_use,
    part_times,
    peak_memory,
    role_shares,
    roof_share,
    unmetered_reason,
    unseen_reason,
)
from ktbench.spec.features import FEATURES
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Agreement, Cell, Outcome, Part, Provenance, Record
from ktbench.spec.run_spec import MeasureSpec, RunSpec


def rows_of(run: Run) -> tuple[Row, ...]:
    """Rows of every planned cell of every part, in the order of the plan.

    Raises ValueError where a cell mixes provenances.
    """
    parts = {part.name: part for part in run.header.parts}
    settings, counting = cell_settings(run.header.cells), sorted(run.latest().items(), key=lambda item: item[0])
    records = by_key((key, record) for (key, _), record in counting)
    rows = [
        _row(cell, parts[cell.part], settings[cell.key], tuple(records.get(cell.key, ())), run.header.command)
        for cell in run.header.cells
    ]
    group_of = {row.cell: group for group in groups_of(rows) for row in group}
    return tuple(_settled(row, group_of[row.cell]) for row in rows)


def _row(
    cell: Cell, part: Part, settings: dict[str, Setting], records: tuple[Record, ...], planned_with: Sequence[str]
) -> Row:
    outcome, why = ending_of(records)
    row = Row(
        label=cell.label,
        role=cell.role,
        copy=cell.copy,
        part=part.name,
        cell=cell.key,
        spec=cell.spec,
        spec_id=cell.spec_id,
        settings=settings,
        features=cell.spec.engine.features,
        baseline=part.baseline,
        is_baseline=cell.role == "arm" and cell.label == part.baseline,
        outcome=outcome,
        why=why,
        goal=cell.spec.measure.goal,
        provenance=_provenance(cell, records),
        records=records,
        command=command_of(cell.spec, planned_with, records[-1].evidence if records else ()),
        error=_error(records),
        agreement=worst(records),
        **(_speed(cell, records) if outcome is not None and outcome.timed else {}),
    )
    row.missing.update(_missing(row))
    return row


def _speed(cell: Cell, records: Sequence[Record]) -> dict[str, Any]:
    step_s, work = step_interval(records, cell.spec.measure), records[-1].work
    serving = serving_of(records, cell.spec)
    return {
        "step_s": step_s,
        "tokens_per_s": serving.output_per_s if serving else step_s.per(cell.spec.workload.tokens_per_step),
        "whole_tokens_per_s": _of_whole(cell.spec, step_s),
        "read_bytes_per_s": work and work.weight_bytes / step_s.mid,
        "flops_per_s": work and work.flops / step_s.mid,
        "roof": roof_share(records, cell.spec.measure),
        "roles": role_shares(records, cell.spec.measure),
        "parts": part_times(records, cell.spec.measure),
        "evidence": evidence_of(records),
        "energy": energy_use(records, cell.spec),
        "peak": peak_memory(records),
        "serving": serving,
    }


def _has_whole(spec: RunSpec) -> bool:
    """Whether a step is a measured one of a slice, which the whole model has as well."""
    return spec.model.is_slice and spec.machine is None and spec.workload.phase in ("decode", "prefill")


def _of_whole(spec: RunSpec, step_s: Interval) -> Interval | None:
    """Tokens/s of the whole model, every layer and the output head taking as long as in the slice."""
    factor = spec.model.whole_over_slice
    return step_s.per(spec.workload.tokens_per_step / factor) if factor and _has_whole(spec) else None


_NO_WHOLE = "layers or output head of the slice are not in the whole model's proportion"
_UNKNOWN_WORK = "the work of a token depends on which requests share a step"


def _missing(row: Row) -> Iterator[tuple[str, str]]:
    """Why measured fields other than the speed-up are None."""
    unknown = _UNKNOWN_WORK if row.is_serving else "the system does not report its work per step"
    reasons = {
        "step_s": row.ending,
        "tokens_per_s": row.ending,
        **({"whole_tokens_per_s": _NO_WHOLE} if _has_whole(row.spec) else {}),
        "read_bytes_per_s": unknown,
        "flops_per_s": unknown,
        "roof": unknown if row.is_serving else _no_roof(row.records),
        **({"roles": "the system does not report the times of its roles"} if row.spec.engine.roles_concurrent else {}),
        "evidence": "the simulation counts nothing" if row.simulated else "the system counts nothing",
        "error": unchecked_reason(row.spec, row.agreement),
        "energy": "a simulated step takes none" if row.simulated else unmetered_reason(row.records),
        "peak": "a simulated step takes none" if row.simulated else unseen_reason(row.records),
    }
    for name, reason in reasons.items():
        if getattr(row, name) is None:
            yield name, reason if row.timed else row.ending


def _settled(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons; NOISY where it was timed and has not reached the precision goal."""
    row = compared(row, group)
    if is_unproven(row, group):
        row = replace(row, unproven=True)
    why = "" if row.simulated else open_reason([*judged_values(row, group).values()], row.spec.measure)
    return replace(row, outcome=Outcome.NOISY, why=why) if why else row


def ending_of(records: Sequence[Record]) -> tuple[Outcome | None, str]:
    """Outcome and reason over all rounds, whatever the precision reached; None before the first trial.

    One round that failed decides, the latest of them where there are several.
    """
    if not records:
        return None, "no trial yet"
    untimed = [record for record in records if not record.outcome.timed]
    noisy = [record for record in records if record.outcome is Outcome.NOISY]
    last = next(reversed([*noisy, *untimed]), None)
    return (last.outcome, last.why) if last else (Outcome.OK, "")


def step_interval(records: Sequence[Record], measure: MeasureSpec) -> Interval:
    """Seconds a step over rounds, each round standing for itself with the median of its samples."""
    return summary({record.round: median(record.samples_s) for record in records}, records, measure)


def _error(records: Sequence[Record]) -> float | None:
    """The largest error of all rounds; where one failed, the error that it failed with."""
    failed = [record.error for record in records if not record.outcome.timed]
    if failed:
        return failed[-1]
    return max((record.error for record in records if record.error is not None), default=None)


def _provenance(cell: Cell, records: Sequence[Record]) -> Provenance | None:
    kinds = {record.provenance for record in records}
    if len(kinds) > 1:
        raise ValueError(f"cell {cell.label} ({cell.key}) mixes {' and '.join(sorted(kinds))} records: do not mix them")
    return next(iter(kinds), None)


NONE_REQUESTED = "none requested, none seen"


def evidence_of(records: Sequence[Record]) -> str | None:
    """Counters of the requested features, per step or block: `avx512_calls 32/step`. None where nothing was counted.

    Those of a simulation are `modelled: ...`.
    """
    counted = [(one, one.seen, len(record.samples_s)) for record in records for one in record.evidence]
    if all(seen is None for _, seen, _ in counted):
        return None
    moved = by_key((one.counter, seen / n) for one, seen, n in counted if one.wanted and seen is not None and n)
    unit = "step" if records[0].replay is None else "block"
    counters = ", ".join(f"{name} {_count(median(each))}/{unit}" for name, each in moved.items()) or NONE_REQUESTED
    return f"modelled: {counters}" if records[0].provenance == "simulated" else counters


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _no_roof(records: Sequence[Record]) -> str:
    sampled = any(record.roofs for record in records)
    return "the system does not report its work per step" if sampled else "no roof was sampled next to the trials"


def worst(records: Sequence[Record]) -> Agreement | None:
    """The least top-1 agreement and the largest divergence of all rounds, with the positions of the latest of them."""
    found = [record.agreement for record in records if record.agreement is not None]
    if not found:
        return None
    return Agreement(
        against=found[-1].against,
        top1=min(agreement.top1 for agreement in found),
        kl_nats=max(agreement.kl_nats for agreement in found),
        positions=found[-1].positions,
    )


def is_unproven(row: Row, group: Sequence[Row]) -> bool:
    """Whether a row is timed beside other systems, and nothing shows that it gives the answers that they give.

    Of a layer every output is held against float32, which shows it.
    """
    compared = row.timed and not row.is_layer and not row.simulated
    return compared and row.agreement is None and len(systems_of([one for one in group if one.timed])) > 1


def unchecked_reason(spec: RunSpec, agreement: Agreement | None) -> str:
    """Why experts' outputs have no error."""
    if spec.machine is not None:
        return "simulated: nothing was computed"
    if spec.workload.phase == "serve":
        return "whole answers were compared with those to single requests"
    if spec.system == OURS or not peer_of(spec.system).black_box:
        return "the output was not checked"
    instead = "logits were compared instead" if agreement else "logits were not compared"
    return f"the experts' outputs cannot be observed: {instead}"


def compared(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons; their intervals include what the control of its group differs by."""
    base = baseline_of(group)
    noise = _noise(base, group) if row.role == "arm" else None
    row = _with_gain(row, group, noise)
    reason = _incomparable(row, base)
    if reason or base is None:
        return replace(row, missing=row.missing | {"speedup": reason})
    speedup = _ratio(base, row)
    if speedup is None:
        return replace(row, missing=row.missing | {"speedup": _unpaired(row, base)})
    speedup = speedup.with_spread(noise)
    return replace(row, speedup=speedup, verdict=judge(speedup))


def equals_of(row: Row, group: Sequence[Row]) -> tuple[Row, ...]:
    """Arms of a row's group that are neither slower nor faster than it, as far as can be told."""
    noise = _noise(baseline_of(group), group)
    others = [one for one in group if one.role == "arm" and one.label != row.label and one.provenance == row.provenance]
    ratios = ((other, _ratio(other, row)) for other in others if other.timed)
    verdicts = ((other, judge(ratio and ratio.with_spread(noise))) for other, ratio in ratios)
    return tuple(other for other, verdict in verdicts if verdict in (Verdict.SAME, Verdict.UNSURE))


def judged_values(row: Row, group: Sequence[Row]) -> Values:
    """By block of rounds, the values that the precision goal of a row is about: see `goal_values`."""
    base, control = baseline_of(group), control_of(group)
    values = goal_values(
        row.trial_times,
        None if base is None else base.trial_times,
        None if control is None else control.trial_times,
        is_baseline=row.is_baseline,
    )
    return by_block(values, row.spec.measure.block_of)


def _ratio(one: Row, other: Row) -> Interval | None:
    """How many times as fast as `one` the `other` is; None where no round compares them."""
    if one.step_s and other.step_s and one.simulated and other.simulated:
        return exact(one.step_s.mid / other.step_s.mid)
    return paired_interval(*comparable(one.trial_times, other.trial_times), one.spec.measure.block_of)


def _unpaired(row: Row, base: Row) -> str:
    if row.round_s.keys() & base.round_s.keys():
        return f"in no round had it and {base.label} the cores in the same place"
    return f"no round has both it and {base.label}"


def _noise(base: Row | None, group: Sequence[Row]) -> Interval | None:
    control = control_of(group)
    return _ratio(base, control) if base and control else None


def _incomparable(row: Row, base: Row | None) -> str:
    if row.is_baseline:
        return "it is the baseline"
    if base is None:
        return f"no cell {row.baseline} was planned at these settings"
    if not row.timed:
        return row.missing["step_s"]
    return "" if base.timed else f"{base.label} is {base.missing['step_s']}"


def _with_gain(row: Row, group: Sequence[Row], noise: Interval | None) -> Row:
    below = _below(row, group)
    if below is None or not (below.timed and row.timed):
        return row
    ratio = _ratio(below, row)
    if ratio is None:
        return replace(row, missing=row.missing | {"gain": _unpaired(row, below)})
    ratio = ratio.with_spread(noise)
    return replace(row, gain=Gain(over=below.label, ratio=ratio, verdict=judge(ratio)))


def _below(row: Row, group: Sequence[Row]) -> Row | None:
    """The arm of our own and of equal precision that lacks only the last feature; None where none was planned."""
    last = next((f for f in reversed(FEATURES) if row.features[f.name] != f.off), None)
    if row.role == "control" or last is None:
        return None
    without = row.features | {last.name: last.off}
    arms = [other for other in group if other.role == "arm" and is_same_system(other, row)]
    return next((other for other in arms if other.features == without), None)


def is_same_system(one: Row, other: Row) -> bool:
    """Whether two rows are of one system at one precision."""
    return (one.spec.system, one.spec.precision) == (other.spec.system, other.spec.precision)
