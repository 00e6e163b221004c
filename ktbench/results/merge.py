"""Facts of several logs merged into one; equal facts are kept once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ktbench.results.lines import encode
from ktbench.results.run import Run
from ktbench.spec.record import Environment, Record

# When a record began; of two that began in the same second the one that was timed is the later.
_Began: TypeAlias = tuple[str, bool, bytes]


def lacking(run: Run, others: Iterable[Run], asked_after: int = 0) -> tuple[Environment | Record, ...]:
    """What `others` measured of a run's cells and the run lacks, each once: machines, then records by when they began.

    The same whatever the order of the others. Of the records of one trial in one log the last counts, whatever the
    clock showed: appended to the run's log it counts over one that the run has and that log held earlier. Of records of
    different logs the one that began later counts, of two that began in the same second one that was timed; of what the
    run has a later one is left out. The others were started when the run had `asked_after` records: those are earlier
    than what the others then measured.
    """
    others, cells = tuple(others), {cell.key for cell in run.header.cells}
    there = {encode(environment) for environment in run.environments}
    machines = {encode(environment): environment for other in others for environment in other.environments}
    mine = [(encode(record), record) for record in run.records]
    known, last, new = {content for content, _ in mine}, _ends(mine[asked_after:]), dict[bytes, _End]()
    for other in others:
        for turn, end in _ends((encode(record), record) for record in other.records if record.cell in cells).items():
            if end.contents[-1] not in known and end.counts_over(last.get(turn)):
                new[end.contents[-1]] = max(end, new.get(end.contents[-1], end), key=lambda one: one.when)
    return (
        *(machines[content] for content in sorted(machines.keys() - there)),
        *(end.record for end in sorted(new.values(), key=lambda one: one.when)),
    )


class _End(NamedTuple):
    """The record of a trial that counts in a log: the last of `contents`, which are all that the log has of the trial.

    `when` orders it among those of other logs: it began no earlier than any before it.
    """

    record: Record
    contents: list[bytes]
    when: tuple[_Began, _Began]

    def counts_over(self, before: _End | None) -> bool:
        return before is None or before.contents[-1] in self.contents or self.when > before.when


def _ends(records: Iterable[tuple[bytes, Record]]) -> dict[tuple[str, int], _End]:
    """How each trial ended in a log, of its records with their contents."""
    found: dict[tuple[str, int], _End] = {}
    for content, record in records:
        turn, began = (record.cell, record.round), (record.started, record.outcome.timed, content)
        contents, latest = (found[turn].contents, found[turn].when[0]) if turn in found else ([], began)
        found[turn] = _End(record, [*contents, content], (max(latest, began), began))
    return found
