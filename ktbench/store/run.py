"""A run read back: its plan, its machines, and the records that count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktbench.core.plain import from_plain
from ktbench.core.published import Published
from ktbench.core.record import Environment, Header, Record
from ktbench.core.scored import Asked, Scored
from ktbench.store.log import KINDS, LOG_NAME, StoreError, read_lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything a log says. `records` keeps every line ever written, in order.

    `published` are the numbers that its parts show beside their cells, as they were when it was planned. Of cells that
    answer questions `scored` are the answers and `asked` the ends of tasks.
    """

    folder: Path
    header: Header
    environments: tuple[Environment, ...]
    records: tuple[Record, ...]
    published: tuple[Published, ...] = ()
    scored: tuple[Scored, ...] = ()
    asked: tuple[Asked, ...] = ()

    def latest(self) -> dict[tuple[str, int], Record]:
        """The record that counts for each (cell key, round): the last one written."""
        return {(record.cell, record.round): record for record in self.records}

    def of_cell(self, key: str) -> tuple[Record, ...]:
        """Counting records of one cell in order of rounds."""
        latest = self.latest()
        return tuple(latest[where] for where in sorted(latest) if where[0] == key)

    def ends(self) -> dict[tuple[str, str], Asked]:
        """How each (cell key, task) ended: the last time that it was asked."""
        return {(asked.cell, asked.task): asked for asked in self.asked}

    def answers(self) -> dict[tuple[str, str], tuple[Scored, ...]]:
        """The answers that count by (cell key, task): of tasks that ended OK, each answer as it was last given."""
        found: dict[tuple[str, str], dict[tuple[str, str, int], Scored]] = {
            where: {} for where, end in self.ends().items() if end.outcome.timed
        }
        for one in self.scored:
            if (where := (one.cell, one.task)) in found:
                found[where][one.question, one.metric, one.sample] = one
        return {where: tuple(answers.values()) for where, answers in found.items()}


def read_run(folder: Path) -> Run:
    """The run kept in a folder. Raises StoreError where there is none or its log is damaged."""
    path = folder / LOG_NAME
    if not path.is_file():
        raise StoreError(f"{folder}: no run here (no {LOG_NAME})")
    facts: dict[str, list[Any]] = {kind: [] for kind in KINDS.values()}
    for kind, body in read_lines(path):
        facts[kind].append(body)
    if not facts["header"]:
        raise StoreError(f"{path}: the run was killed before its plan was written; start it again")
    return Run(
        folder=folder,
        header=_typed(facts["header"][0], Header, path),
        environments=tuple(_typed(body, Environment, path) for body in facts["environment"]),
        records=tuple(_typed(body, Record, path) for body in facts["record"]),
        published=tuple(_typed(body, Published, path) for body in facts["published"]),
        scored=tuple(_typed(body, Scored, path) for body in facts["scored"]),
        asked=tuple(_typed(body, Asked, path) for body in facts["asked"]),
    )


def _typed(body: Any, kind: type[Any], path: Path) -> Any:
    try:
        return from_plain(body, kind)
    except ValueError as error:
        raise StoreError(f"{path}: {kind.__name__.lower()} {error}") from None
