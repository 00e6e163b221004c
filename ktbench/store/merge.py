"""Facts of several logs brought together in one: a fact is what it says, so what is there twice is one."""

from __future__ import annotations

from collections.abc import Iterable

from ktbench.core.record import Environment, Record
from ktbench.store.lines import Fact, encode
from ktbench.store.run import Run


def lacking(run: Run, others: Iterable[Run], asked_after: int = 0) -> tuple[Environment | Record, ...]:
    """What a run has not of what `others` measured of its cells, each once: machines, then records by when they began.

    The same whatever the order of the others. Appended to the run's log, of two records of one turn the later counts,
    of two that began in the same second one that was timed. Records of which the run has a later one are therefore left
    out. The others were asked when the run had `asked_after` records: those are earlier than what the others then
    measured, whatever the clocks of their machines say.
    """
    others, cells = tuple(others), {cell.key for cell in run.header.cells}
    there: tuple[Fact, ...] = (*run.environments, *run.records)
    known = {encode(fact) for fact in there}
    machines = {encode(fact): fact for other in others for fact in other.environments}
    records = {encode(fact): fact for other in others for fact in other.records if fact.cell in cells}
    last = {(record.cell, record.round): record for record in run.records[asked_after:]}
    new = sorted((records[content] for content in records.keys() - known), key=_when)
    return (
        *(machines[content] for content in sorted(machines.keys() - known)),
        *(record for record in new if _when(record) > _when(last.get((record.cell, record.round)))),
    )


def _when(record: Record | None) -> tuple[str, bool, bytes]:
    """When a record began; of two that began in the same second the one that was timed is the later."""
    return ("", False, b"") if record is None else (record.started, record.outcome.timed, encode(record))
