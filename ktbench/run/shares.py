"""Shares of a sweep: cells that are compared with each other stay together, and each share goes to one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec

from ktbench.results import LOG_NAME, Run
from ktbench.results.log import try_lock
from ktbench.spec.cells import points_of
from ktbench.spec.record import Cell, Environment, Header, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec

NODES = "nodes"
_SHARE = "share.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one node is asked for: the cells of `header`, of which `kept` records are there already.

    `header` is the run's with the share's cells, parts and minutes. `mixed`: records of other machines and other code
    may be gone on with. `home` is the folder that relative paths in specs begin from.
    """

    header: Header
    environments: tuple[Environment, ...]
    kept: tuple[Record, ...]
    mixed: bool
    home: str


def cut(cells: Sequence[Cell], jobs: int | None) -> tuple[tuple[Cell, ...], ...]:
    """Cells in at most `jobs` shares of about as many cells, whole points in the order of the plan.

    None: a share for each point. Neighbours stay together, as points next to each other tend to share weights.
    """
    points = points_of(cells)
    shares = len(points) if jobs is None else min(jobs, len(points))
    sizes = [len(point) for point in points]
    middles = [sum(sizes[:index]) + size / 2 for index, size in enumerate(sizes)]
    placed = [int(middle * shares / sum(sizes)) for middle in middles]
    numbered = zip(placed if jobs is not None else range(shares), points, strict=True)
    return tuple(
        tuple(cell for _, point in together for cell in point)
        for _, together in groupby(numbered, key=lambda one: one[0])
    )


def share_of(run: Run, cells: Sequence[Cell], measure: MeasureSpec, *, mixed: bool) -> Share:
    """The share of some cells of a run, with what it has of them."""
    kept = whole_rounds(run, cells)
    known = {record.env_id for record in kept}
    return Share(
        header=only(run, cells, measure).header,
        environments=tuple(environment for environment in run.environments if environment.env_id in known),
        kept=kept,
        mixed=mixed,
        home=str(Path.cwd()),
    )


def only(run: Run, cells: Sequence[Cell], measure: MeasureSpec | None = None) -> Run:
    """A run as if it had planned these cells alone, to be measured as `measure` says (None: as before)."""
    keys, parts = {cell.key for cell in cells}, {cell.part for cell in cells}
    header = replace(
        run.header,
        cells=tuple(cells),
        parts=tuple(part for part in run.header.parts if part.name in parts),
        measure=measure or run.header.measure,
    )
    return replace(run, header=header, records=tuple(record for record in run.records if record.cell in keys))


def whole_rounds(run: Run, cells: Sequence[Cell]) -> tuple[Record, ...]:
    """Records of the rounds that all cells of their point were timed in; others were cut short on another node.

    Those are measured anew, as ratios are formed inside rounds, which one machine has measured. So are the rounds from
    the one on in which a cell of the point has failed, which sat out what followed and gets another chance.
    """
    latest = run.latest()
    return tuple(record for point in points_of(cells) for record in _of_point(latest, point))


def _of_point(latest: Mapping[tuple[str, int], Record], point: Sequence[Cell]) -> list[Record]:
    keys = {cell.key for cell in point}
    cannot = {key for (key, _), record in latest.items() if record.outcome is Outcome.UNSUPPORTED}
    timed = {where: record for where, record in latest.items() if where[0] in keys and record.outcome.timed}
    whole = {number for _, number in timed if all((key, number) in timed for key in keys - cannot)}
    return [timed[where] for where in sorted(timed) if where[1] in whole]


def write_share(share: Share, folder: Path) -> None:
    """Ask for a share: its folder is made, from which a node reads it. Raises OSError."""
    folder.mkdir(parents=True)
    (folder / _SHARE).write_bytes(msgspec.json.encode(share))


def read_share(folder: Path) -> Share | None:
    """What is asked for in a folder; None once it was withdrawn, or where this node does not see the folder."""
    try:
        return msgspec.json.decode((folder / _SHARE).read_bytes(), type=Share)
    except FileNotFoundError:
        return None


def is_asked(folder: Path) -> bool:
    """Whether the share is still wanted."""
    return (folder / _SHARE).is_file()


def withdraw(folder: Path) -> None:
    """No node shall begin with it; one that has begun ends after the turn under way."""
    (folder / _SHARE).unlink(missing_ok=True)


def withdraw_all(folders: Iterable[Path]) -> None:
    """Withdraw several shares."""
    for folder in folders:
        withdraw(folder)


def is_under_way(folder: Path) -> bool:
    """Whether a process writes to the share's log at this moment, on whichever node. Raises OSError, StoreError."""
    try:
        with (folder / LOG_NAME).open("rb") as log:
            return not try_lock(log, shared=True)
    except FileNotFoundError:
        return False
