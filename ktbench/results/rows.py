"""From the records of a run to its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import mean, median

from ktbench.results.command import command_of
from ktbench.results.intervals import Interval, by_block, exact, open_reason
from ktbench.results.published import deferral_cost
from ktbench.results.quantities.quantity import Quantity, values_of
from ktbench.results.quantities.table import QUANTITIES, STEP, reasons_of
from ktbench.results.row import Gain, Row, baseline_of, control_of, groups_of, systems_of
from ktbench.results.run import Run
from ktbench.results.settings import Setting, cell_settings, group_by
from ktbench.results.speedups import Values, Verdict, comparable, goal_values, judge, paired_interval, trial_time
from ktbench.spec.features import features_on
from ktbench.spec.record import Cell, Outcome, Part, Provenance, Record


def rows_of(run: Run) -> tuple[Row, ...]:
    """Rows of every planned cell of every part, in the order of the plan.

    Raises ValueError where a cell mixes provenances.
    """
    parts = {part.name: part for part in run.header.parts}
    settings, counting = cell_settings(run.header.cells), sorted(run.latest().items(), key=lambda item: item[0])
    records = group_by((key, record) for (key, _), record in counting)
    rows = [
        _row(cell, parts[cell.part], settings[cell.key], tuple(records.get(cell.key, ())), run.header.command)
        for cell in run.header.cells
    ]
    group_of = {row.cell: group for group in groups_of(rows) for row in group}
    return tuple(_settled(row, group_of[row.cell]) for row in rows)


def _row(
    cell: Cell, part: Part, settings: dict[str, Setting], records: tuple[Record, ...], planned_with: Sequence[str]
) -> Row:
    row = row_of(cell, part, settings, records, QUANTITIES)
    command = command_of(cell.spec, planned_with, records[-1].evidence if records else ())
    return replace(row, command=command, remarks=(*_remarks(row),), missing=dict(reasons_of(row)))


def row_of(
    cell: Cell,
    part: Part,
    settings: dict[str, Setting],
    records: tuple[Record, ...],
    quantities: Iterable[Quantity[Row]] = (STEP,),
) -> Row:
    """The row of a cell with the values of `quantities`, before it is compared with others."""
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
    )
    times = {record.round: trial_time(record) for record in records} if outcome is not None and outcome.timed else {}
    return replace(row, values=values_of(row, quantities), trial_times=times)


def _remarks(row: Row) -> Iterator[str]:
    """Remarks of the system in any round, each once; what deferral costs; how its own clock compares with ours."""
    yield from dict.fromkeys(remark for record in row.records for remark in record.notes)
    yield from _deferral_cost(row)
    shares = [mean(r.samples_s) / r.own_step_s - 1 for r in row.records if r.samples_s and r.own_step_s]
    if shares:
        low, mid, high = (f"{100 * share:.2g}" for share in (min(shares), median(shares), max(shares)))
        yield f"steps took {mid} % longer than by the system's own clock (median of the rounds; {low} to {high} %)"


def _deferral_cost(row: Row) -> Iterator[str]:
    """What deferred experts cost in answers by published scores; of what `auto` chose, that there are none."""
    asked = [one.asked for record in row.records for one in record.evidence if one.feature == "deferral"]
    deferred = max((value for value in asked if isinstance(value, int)), default=0)
    name, is_chosen = row.spec.model.name, row.spec.engine.deferral == "auto"
    if deferred and (cost := deferral_cost(name, deferred)):
        yield f"deferring {deferred} experts changes answers: {cost}"
    elif deferred and is_chosen:
        yield f"deferring {deferred} experts changes answers; nothing is published of {name}"


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


def _provenance(cell: Cell, records: Sequence[Record]) -> Provenance | None:
    kinds = {record.provenance for record in records}
    if len(kinds) > 1:
        raise ValueError(f"cell {cell.label} ({cell.key}) mixes {' and '.join(sorted(kinds))} records: do not mix them")
    return next(iter(kinds), None)


def is_unproven(row: Row, group: Sequence[Row]) -> bool:
    """Whether a row is timed beside other systems, and nothing shows that it gives the answers that they give.

    Of a layer every output is held against float32, which shows it.
    """
    compared = row.timed and not row.is_layer and not row.simulated
    return compared and row.agreement is None and len(systems_of([one for one in group if one.timed])) > 1


def compared(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons; their intervals include what the control of its group differs by."""
    if not row.timed:
        return row
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
    return "" if base.timed else f"{base.label} is {base.ending}"


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
    mine = features_on(row.features)
    if row.role == "control" or not mine:
        return None
    del mine[list(mine)[-1]]
    arms = [other for other in group if other.role == "arm" and is_same_system(other, row)]
    return next((other for other in arms if features_on(other.features) == mine), None)


def is_same_system(one: Row, other: Row) -> bool:
    """Whether two rows are of one system at one precision."""
    return (one.spec.system, one.spec.precision) == (other.spec.system, other.spec.precision)
