"""A run read back: its plan, its machines, and the records that count."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ktbench.results.lines import Damage, Fact, StoreError, read_lines
from ktbench.results.log import LOG_NAME, PLAN_NAME
from ktbench.spec.published import Published
from ktbench.spec.record import Environment, Header, Part, Record, SampleResult, TaskResult

T = TypeVar("T", bound=Fact | Damage)


class NoPlan(StoreError):
    """A folder without a run, or with lines of one whose plan is not there; `damage` names those that were hurt."""

    def __init__(self, why: str, damage: Sequence[Damage] = ()) -> None:
        super().__init__(why)
        self.damage = tuple(damage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything in a log. `records` keeps every line ever written, in order.

    `published` are the numbers that its parts show beside their cells, as they were when it was planned. Of cells that
    answer questions `sample_results` are the answers and `task_results` the ends of tasks. `damage` names the lines
    that are not what was written: what they held counts as never written, so resuming the run measures or restores it.
    """

    folder: Path
    header: Header
    environments: tuple[Environment, ...]
    records: tuple[Record, ...]
    published: tuple[Published, ...] = ()
    sample_results: tuple[SampleResult, ...] = ()
    task_results: tuple[TaskResult, ...] = ()
    damage: tuple[Damage, ...] = ()

    def latest(self) -> dict[tuple[str, int], Record]:
        """The record that counts for each (cell key, round): the last one written."""
        return {(record.cell, record.round): record for record in self.records}

    def of_cell(self, key: str) -> tuple[Record, ...]:
        """Counting records of one cell in order of rounds."""
        latest = self.latest()
        return tuple(latest[where] for where in sorted(latest) if where[0] == key)

    def ends(self) -> dict[tuple[str, str], TaskResult]:
        """How each (cell key, task) ended: the last time that it ran."""
        return {(end.cell, end.task): end for end in self.task_results}

    def measured(self) -> tuple[Record | TaskResult, ...]:
        """Turns that were timed and tasks that ended well, of those that count and are not simulated."""
        facts: tuple[Record | TaskResult, ...] = (*self.latest().values(), *self.ends().values())
        return tuple(fact for fact in facts if fact.provenance == "measured" and fact.outcome.timed)

    def measured_on(self) -> set[str]:
        """Ids of the machines that `measured`, whichever planned the run."""
        return {fact.env_id for fact in self.measured()}

    def answers(self) -> dict[tuple[str, str], tuple[SampleResult, ...]]:
        """The answers that count by (cell key, task): of tasks that ended OK, each answer as it was last given."""
        found: dict[tuple[str, str], dict[tuple[str, str, int], SampleResult]] = {
            where: {} for where, end in self.ends().items() if end.outcome.timed
        }
        for one in self.sample_results:
            if (where := (one.cell, one.task)) in found:
                found[where][one.question, one.metric, one.sample] = one
        return {where: tuple(answers.values()) for where, answers in found.items()}


def read_run(folder: Path) -> Run:
    """The run kept in a folder.

    Raises NoPlan, and StoreError for lines of another version, values that no fact has, and cells beside the plan.
    """
    path = folder / LOG_NAME
    if not path.is_file():
        raise NoPlan(f"{folder}: no run here (no {LOG_NAME})")
    lines = tuple(read_lines(path))
    damage = _of(lines, Damage)
    headers, scored, ended = _of(lines, Header), _of(lines, SampleResult), _of(lines, TaskResult)
    if not headers and damage:  # of the plan there is a second copy
        headers = _of(copied(folder), Header)
    if not headers:
        raise NoPlan(_planless(path, damage), damage)
    run = Run(
        folder=folder,
        header=headers[0],
        environments=_of(lines, Environment),
        records=_of(lines, Record),
        published=_of(lines, Published),
        sample_results=scored,
        task_results=_with_all_answers(ended, scored) if damage else ended,
        damage=damage,
    )
    planned = {cell.key for cell in run.header.cells}
    found = [record.cell for record in run.records] + [one.cell for one in scored] + [one.cell for one in ended]
    if lost := [cell for cell in found if cell not in planned]:
        raise StoreError(f"{path}: has a result of cell {lost[0]}, which is not in its plan")
    return run


def copied(folder: Path) -> tuple[Fact | Damage, ...]:
    """The copy of the plan of a run, nothing where there is none. Raises StoreError for another version."""
    path = folder / PLAN_NAME
    return tuple(read_lines(path)) if path.is_file() else ()


def _of(lines: Sequence[Fact | Damage], kind: type[T]) -> tuple[T, ...]:
    return tuple(line for line in lines if isinstance(line, kind))


def _planless(path: Path, damage: Sequence[Damage]) -> str:
    if damage:
        return f"{damage[0]}; without the plan the other lines cannot be read: restore the file, or start the run again"
    return f"{path}: the run was killed before its plan was written; start it again"


def _with_all_answers(ended: Sequence[TaskResult], scored: Sequence[SampleResult]) -> tuple[TaskResult, ...]:
    """Ends of tasks of which no answer is lost: a score over fewer questions would be another score."""
    known: dict[tuple[str, str], set[tuple[str, str, int]]] = {}
    for one in scored:
        known.setdefault((one.cell, one.task), set()).add((one.question, one.metric, one.sample))
    return tuple(end for end in ended if _is_complete(end, known.get((end.cell, end.task), set())))


def _is_complete(end: TaskResult, known: Collection[tuple[str, str, int]]) -> bool:
    """In logs that did not count answers each question has to have one."""
    return len(known) >= end.answers and len({question for question, _, _ in known}) >= end.questions


def parts_of(run: Run) -> tuple[Run, ...]:
    """Each part with its title, cells and records; a run whose only part has no name is itself."""
    parts = run.header.parts
    return (run,) if [part.name for part in parts] == [""] else tuple(_alone(run, part) for part in parts)


def the_part(run: Run) -> Part:
    """The part of a run that has one. Raises ValueError where it has several: take them from `parts_of`."""
    (part,) = run.header.parts
    return part


def _alone(run: Run, part: Part) -> Run:
    cells = tuple(cell for cell in run.header.cells if cell.part == part.name)
    keys = {cell.key for cell in cells}
    header = replace(run.header, title=part.title, parts=(part,), cells=cells)
    return replace(run, header=header, records=tuple(record for record in run.records if record.cell in keys))


Facts = dict[str, Any]


def environments_of(run: Run) -> tuple[Environment, ...]:
    """What worker sessions found on the machines whose trials count: those that measured, else those that simulated.

    Of a run that was spread over nodes these are the nodes. Without any trial it is the machine that planned the run.
    """
    simulated = {record.env_id for record in run.latest().values() if record.outcome.timed}
    ids = run.measured_on() or simulated or {run.header.env_id}
    return tuple(found for found in run.environments if found.env_id in ids)


def each_machine(run: Run) -> list[Facts]:
    """Facts of each machine whose trials count, as last found; one without facts where none was described."""
    return [*machines_of(run).values()] or [{}]


def machines_of(run: Run) -> dict[str, Facts]:
    """Facts of the machines whose trials count, as last found, by their ids; empty where none was described."""
    return {found.env_id: found.facts for found in environments_of(run)}


def facts_of(run: Run) -> Facts:
    """Facts of the machine whose trials count, of several the last that was described; empty where none was."""
    return each_machine(run)[-1]
