"""Facts of several logs brought together in one: a fact is what it says, so what is there twice is one."""

from __future__ import annotations

from collections.abc import Iterable

from ktbench.core.record import Environment, Record
from ktbench.store.lines import Fact, encode
from ktbench.store.run import Run


def lacking(run: Run, others: Iterable[Run]) -> tuple[Environment | Record, ...]:
    """What a run has not of what `others` measured of its cells, each once: machines, then records by when they began.

    The same whatever the order of the others. Appended to the run's log, of two records of one turn the later counts,
    of two that began in the same second one that was timed.
    """
    others, cells = tuple(others), {cell.key for cell in run.header.cells}
    there: tuple[Fact, ...] = (*run.environments, *run.records)
    known = {encode(fact) for fact in there}
    machines = {encode(fact): fact for other in others for fact in other.environments}
    records = {encode(fact): fact for other in others for fact in other.records if fact.cell in cells}
    return (
        *(machines[content] for content in sorted(machines.keys() - known)),
        *(records[content] for content in sorted(records.keys() - known, key=lambda content: _when(records, content))),
    )


def _when(records: dict[bytes, Record], content: bytes) -> tuple[str, bool, bytes]:
    record = records[content]
    return record.started, record.outcome.timed, content
