"""Shards of a sweep: cells that are compared stay together, and each shard runs on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec

from ktbench.files import write_whole
from ktbench.results import LOG_NAME, Damage, Log, NoPlan, Run, read_run
from ktbench.results.find import lacking
from ktbench.results.log import try_lock
from ktbench.results.stopping import SweepCriterion
from ktbench.run.messages import RecordIds, new_record
from ktbench.run.progress import say
from ktbench.spec.cells import points_of
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Cell, Environment, Header, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec

NODES = "nodes"
_SHARD_FILE = "share.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The work of one node: the cells of `header`, with the existing records in `kept`.

    `header` is that of the run, with the shard's cells, parts and minutes. `mixed`: records of other machines and code
    may be continued. `home` is the folder for relative paths in specs.
    """

    header: Header
    environments: tuple[Environment, ...]
    kept: tuple[Record, ...]
    mixed: bool
    home: str


def cut(cells: Sequence[Cell], jobs: int | None) -> tuple[tuple[Cell, ...], ...]:
    """Cells in at most `jobs` shards of about equal size, whole points in the order of the plan.

    None: a shard for each point. Neighbouring points stay together, since they tend to share weights.
    """
    points = points_of(cells)
    shards = len(points) if jobs is None else min(jobs, len(points))
    sizes = [len(point) for point in points]
    middles = [sum(sizes[:index]) + size / 2 for index, size in enumerate(sizes)]
    placed = [int(middle * shards / sum(sizes)) for middle in middles]
    numbered = zip(placed if jobs is not None else range(shards), points, strict=True)
    return tuple(
        tuple(cell for _, point in together for cell in point)
        for _, together in groupby(numbered, key=lambda numbered_point: numbered_point[0])
    )


def shard_of(run: Run, cells: Sequence[Cell], measure: MeasureSpec, *, mixed: bool) -> Shard:
    """The shard of some cells of a run, with their existing records."""
    kept = whole_rounds(run, cells)
    known = {record.env_id for record in kept}
    return Shard(
        header=only(run, cells, measure).header,
        environments=tuple(environment for environment in run.environments if environment.env_id in known),
        kept=kept,
        mixed=mixed,
        home=str(Path.cwd()),
    )


def only(run: Run, cells: Sequence[Cell], measure: MeasureSpec | None = None) -> Run:
    """A run as if it had planned these cells alone, with another `measure` (None: as before)."""
    keys, parts = {cell.key for cell in cells}, {cell.part for cell in cells}
    header = replace(
        run.header,
        cells=tuple(cells),
        parts=tuple(part for part in run.header.parts if part.name in parts),
        measure=measure or run.header.measure,
    )
    return replace(run, header=header, records=tuple(record for record in run.records if record.cell in keys))


def whole_rounds(run: Run, cells: Sequence[Cell]) -> tuple[Record, ...]:
    """Records of the rounds in which all cells of their point were timed.

    Other rounds are measured again, since ratios are formed within rounds measured by one machine. So are the rounds
    from the first failure of a cell of the point on: the cell was skipped after that, and is retried.
    """
    latest = run.latest()
    return tuple(record for point in points_of(cells) for record in _whole_rounds_of_point(latest, point))


def _whole_rounds_of_point(latest: Mapping[tuple[str, int], Record], point: Sequence[Cell]) -> list[Record]:
    keys = {cell.key for cell in point}
    cannot = {key for (key, _), record in latest.items() if record.outcome is Outcome.UNSUPPORTED}
    timed = {where: record for where, record in latest.items() if where[0] in keys and record.outcome.timed}
    whole = {number for _, number in timed if all((key, number) in timed for key in keys - cannot)}
    return [timed[where] for where in sorted(timed) if where[1] in whole]


def write_shard(shard: Shard, folder: Path) -> None:
    """Write a shard into a folder, from which a node reads it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _SHARD_FILE, msgspec.json.encode(shard))


def read_shard(folder: Path) -> Shard | None:
    """The shard in a folder; None once it was withdrawn, or if this node does not see the folder."""
    try:
        return msgspec.json.decode((folder / _SHARD_FILE).read_bytes(), type=Shard)
    except FileNotFoundError:
        return None


def is_wanted(folder: Path) -> bool:
    """Whether the shard is still wanted: it was not withdrawn."""
    return (folder / _SHARD_FILE).is_file()


def withdraw(*folders: Path) -> None:
    """Withdraw shards: no node starts them any more, and one that has started ends after the current trial."""
    for folder in folders:
        (folder / _SHARD_FILE).unlink(missing_ok=True)


def is_running(folder: Path) -> bool:
    """Whether a process on any node writes to the shard's log at this moment. Raises OSError, StoreError."""
    try:
        with (folder / LOG_NAME).open("rb") as log:
            return not try_lock(log, shared=True)
    except FileNotFoundError:
        return False


def nodes_of(folder: Path) -> list[Path]:
    """Folders of all shards of a run, in the order in which they were written."""
    return sorted((folder / NODES).glob("*-*"))


def gather_left(log: Log, nodes: Sequence[Path], on_record: Callable[[Record], None]) -> None:
    """Withdraw the shards of earlier sessions, and append the records of their nodes to the run's log.

    Raises RequestError where a node still runs one.
    """
    end_nodes(nodes)
    gather(log, nodes, on_record)
    say_damage(damage_of(nodes))


def end_nodes(nodes: Sequence[Path]) -> None:
    """Withdraw shards. Raises RequestError if a node still runs one."""
    withdraw(*nodes)
    if busy := next(filter(is_running, nodes), None):
        raise RequestError(f"{busy}: a node still runs it and ends after the current trial; resume again then")


def gather(log: Log, nodes: Sequence[Path], on_record: Callable[[Record], None], known_records: int = 0) -> None:
    """Append new lines of nodes to the run's log; `on_record` gets the records. `known_records`: see `lacking`."""
    for fact in lacking(read_run(log.path.parent), filter(None, map(_read_node, nodes)), known_records):
        log.append(fact)
        if isinstance(fact, Record):
            on_record(fact)


def say_damage(damage: Iterable[Damage]) -> None:
    """Print damaged lines."""
    for problem in damage:
        say(f"{problem}: left out; a trial recorded there is measured again on resuming")


def damage_of(nodes: Sequence[Path]) -> Iterator[Damage]:
    """Damaged lines in the logs of nodes. Lines of a log that is being written may be incomplete."""
    for node in nodes:
        try:
            yield from read_run(node).damage
        except NoPlan as error:
            yield from error.damage


def _read_node(folder: Path) -> Run | None:
    """The run in the log of a node; None without a plan, before its first line is written. Raises StoreError."""
    try:
        return read_run(folder)
    except NoPlan:
        return None


def is_done(run: Run, cells: Sequence[Cell], measure: MeasureSpec) -> bool:
    """Whether some cells need no more trials: no failed cell could be retried, and the criterion is fulfilled."""
    mine = only(run, cells, measure)
    ends = {record.cell: record for record in mine.latest().values()}
    failed = [r for r in mine.latest().values() if not r.outcome.timed and r.outcome is not Outcome.UNSUPPORTED]
    if failed or len(ends) < len(cells):
        return False
    last = max((record.round for record in ends.values()), default=0)
    measured = [record for record in ends.values() if record.provenance == "measured" and record.outcome.timed]
    return not measured or _criterion(mine, measure, last).finished()


def _criterion(run: Run, measure: MeasureSpec, last_round: int) -> SweepCriterion:
    """The stopping criterion of a run's cells after all rounds up to this one, whichever session measured them."""
    criterion = SweepCriterion(run.header.cells, run.header.parts, measure, {})
    for number in range(last_round + 1):
        criterion.add(record for record in run.records if record.round == number)
    return criterion


def failures(run: Run, cells: Sequence[Cell], why: str, machine: Environment) -> Iterator[Record]:
    """A failed trial for each cell of a shard whose node has failed; none for cells that have failed themselves."""
    latest, ids = run.latest(), RecordIds(code_id=machine.code_id, env_id=machine.env_id)
    for cell in cells:
        mine = {number: record for (key, number), record in latest.items() if key == cell.key}
        if any(not record.outcome.timed for record in mine.values()) or (mine and cell.spec.machine is not None):
            continue
        yield new_record(cell, 1 + max(mine, default=-1), ids, Outcome.CRASHED, why)
