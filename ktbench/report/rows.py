"""From the records of a run to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ktbench.report.against_baseline import compared, judged_values
from ktbench.report.agreement import MARK, is_unproven, unchecked_reason, worst
from ktbench.report.ending import ending_of, open_reason, step_interval
from ktbench.report.energy import energy_use, unmetered_reason
from ktbench.report.evidence import evidence_of
from ktbench.report.peaks import peak_memory, unseen_reason
from ktbench.report.roles import role_shares
from ktbench.report.roof import roof_share
from ktbench.report.row import Row, groups_of
from ktbench.report.text import DASH, number, plus_minus, rate
from ktbench.results import Run
from ktbench.results.command import command_of
from ktbench.results.intervals import is_exact
from ktbench.results.settings import alike, precision_word, settings_of
from ktbench.spec.outcome import Outcome
from ktbench.spec.record import Cell, Part, Provenance, Record


def rows_of(run: Run) -> tuple[Row, ...]:
    """Rows of every planned cell of every part, in the order of the plan.

    Raises ValueError where a cell mixes provenances.
    """
    parts = {part.name: part for part in run.header.parts}
    worded = {cell.part for cell in run.header.cells if precision_word(cell.label)}
    records = _by_cell(run)
    rows = []
    for cell in run.header.cells:
        row = _row(cell, parts[cell.part], records.get(cell.key, ()), run.header.command)
        rows.append(_of_any_precision(row) if cell.part in worded else row)
    rows = _with_alike_settings(rows)
    group_of = {row.cell: group for group in groups_of(rows) for row in group}
    return tuple(_settled(row, group_of[row.cell]) for row in rows)


def _by_cell(run: Run) -> dict[str, tuple[Record, ...]]:
    """Counting records of every cell in order of rounds."""
    found: dict[str, list[Record]] = {}
    for (key, _), record in sorted(run.latest().items(), key=lambda item: item[0]):
        found.setdefault(key, []).append(record)
    return {key: tuple(records) for key, records in found.items()}


def _of_any_precision(row: Row) -> Row:
    """Where arms name their precision it is no setting: rows of one point are one group."""
    return replace(row, settings={key: value for key, value in row.settings.items() if key != "precision"})


def _with_alike_settings(rows: Sequence[Row]) -> list[Row]:
    """Where a part has simulated and measured rows, their settings have the same keys."""
    found: list[Row] = []
    for part in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == part]
        settings = alike(row.settings for row in mine)
        for row, one in zip(mine, settings, strict=True):  # their order counts: it makes groups
            found.append(row if [*row.settings.items()] == [*one.items()] else replace(row, settings=one))
    return found


def _settled(row: Row, group: Sequence[Row]) -> Row:
    """The row with its comparisons; NOISY where it was timed and has not reached the precision goal."""
    row = compared(row, group)
    if is_unproven(row, group):
        row = replace(row, unproven=True)
    why = "" if row.simulated else open_reason(list(judged_values(row, group).values()), row.goal)
    return replace(row, outcome=Outcome.NOISY, why=why) if why else row


def name_width(rows: Sequence[Row]) -> int:
    """Letters that the names of rows take in lines that align."""
    return max([16, *(len(row.shown) for row in rows)])


def row_line(row: Row, width: int = 16) -> str:
    """The row as one line, its name `width` letters wide, for a terminal while a sweep runs."""
    name = f"{row.shown:<{width}}"
    if row.is_layer:
        name = f"{f'{row.shown} @{row.spec.tokens_per_expert:g}':<{width + 8}}"
    if row.step_s is None or row.tokens_per_s is None:
        reason = f": {row.why}" if row.why else ""
        return f"{name} {row.outcome or 'not measured yet'}{reason}"
    mark, spread = "~" if row.outcome is Outcome.NOISY else "", plus_minus(row.step_s)
    time = f"{mark + number(row.step_s.mid * 1e3):>9} ms/{'layer' if row.is_layer else 'step'} {spread:>7}"
    speed = _rate_word(row) if row.is_layer else f"{number(row.tokens_per_s.mid):>9} tokens/s"
    share = "" if row.roof is None else f"{number(row.roof.share.mid * 100, 2):>5}% of {row.roof.limit}"
    rounds = "simulated" if row.simulated else f"{row.rounds:2d} rounds"
    return f"{name} {time}  {speed}  {_speedup_word(row):<33}  {share:<20}  {rounds}"


def _rate_word(row: Row) -> str:
    return f"{DASH if row.flops_per_s is None else rate(row.flops_per_s, row.spec.dtype):>14}"


def _speedup_word(row: Row) -> str:
    if row.is_baseline:
        return "the baseline"
    if row.speedup is None:
        return "no speed-up"
    low, mid, high = (f"{value:.3f}" for value in (row.speedup.low, row.speedup.mid, row.speedup.high))
    ends = "" if is_exact(row.speedup) else f" [{low}, {high}]"
    return f"{mid}x{MARK if row.unproven else ''}{ends} {row.verdict}"


def _row(cell: Cell, part: Part, records: tuple[Record, ...], planned_with: Sequence[str]) -> Row:
    outcome, why = ending_of(records)
    row = Row(
        label=cell.label,
        role=cell.role,
        part=part.name,
        cell=cell.key,
        spec=cell.spec,
        spec_id=cell.spec_id,
        settings=settings_of(cell.spec),
        features=cell.spec.engine.features,
        baseline=part.baseline,
        is_baseline=cell.role == "arm" and cell.label == part.baseline,
        outcome=outcome,
        why=why,
        goal=cell.spec.measure.goal,
        provenance=_provenance(cell, records),
        records=records,
        command=command_of(cell.spec, planned_with),
        error=_error(records),
        agreement=worst(records),
        **(_speed(cell, records) if outcome is not None and outcome.timed else {}),
    )
    row.missing.update(_missing(row))
    return row


def _error(records: Sequence[Record]) -> float | None:
    """The largest error of all rounds; where one failed, the error that it failed with."""
    failed = [record.error for record in records if not record.outcome.timed]
    if failed:
        return failed[-1]
    return max((record.error for record in records if record.error is not None), default=None)


def _provenance(cell: Cell, records: Sequence[Record]) -> Provenance | None:
    kinds = {record.provenance for record in records}
    if len(kinds) > 1:
        raise ValueError(f"cell {cell.label} ({cell.key}) mixes {' and '.join(sorted(kinds))} records: keep them apart")
    return next(iter(kinds), None)


def _speed(cell: Cell, records: Sequence[Record]) -> dict[str, Any]:
    step_s, work = step_interval(records), records[-1].work
    return {
        "step_s": step_s,
        "tokens_per_s": step_s.per(cell.spec.workload.tokens_per_step),
        "read_bytes_per_s": work and work.weight_bytes / step_s.mid,
        "flops_per_s": work and work.flops / step_s.mid,
        "roof": roof_share(records),
        "roles": role_shares(records),
        "evidence": evidence_of(records),
        "energy": energy_use(records, cell.spec.workload.tokens_per_step),
        "peak": peak_memory(records),
    }


def _no_roof(records: Sequence[Record]) -> str:
    sampled = any(record.roofs for record in records)
    return "the system does not say how much work a step is" if sampled else "no roof was sampled next to the turns"


def _missing(row: Row) -> Iterator[tuple[str, str]]:
    """Why measured fields are None, apart from the speed-up."""
    ending = f"{row.outcome or 'not measured'}: {row.why}"
    reasons = {
        "step_s": ending,
        "tokens_per_s": ending,
        "read_bytes_per_s": "the system does not say how much work a step is",
        "flops_per_s": "the system does not say how much work a step is",
        "roof": _no_roof(row.records),
        **({"roles": "the system does not say what its roles did"} if row.spec.engine.apart else {}),
        "evidence": "the simulation counts nothing" if row.simulated else "the system counts nothing",
        "error": unchecked_reason(row.spec, row.agreement),
        "energy": "a simulated step takes none" if row.simulated else unmetered_reason(row.records),
        "peak": "a simulated step takes none" if row.simulated else unseen_reason(row.records),
    }
    for name, reason in reasons.items():
        if getattr(row, name) is None:
            yield name, reason if row.timed else ending
