"""Brings what nodes have recorded into the log of their run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ktbench.core.errors import RequestError
from ktbench.core.record import Record
from ktbench.launch.shares import NODES, is_under_way, withdraw_all
from ktbench.store import Log, Run, StoreError, read_run
from ktbench.store.merge import lacking


def nodes_of(folder: Path) -> list[Path]:
    """Folders of all shares that a run was ever cut into, in the order in which they were asked for."""
    return sorted((folder / NODES).glob("*-*"))


def gather_left(log: Log, nodes: Sequence[Path], told: Callable[[Record], None]) -> None:
    """Withdraw what earlier sittings have asked nodes for, and append what those have left to the run's log.

    Raises RequestError where a node still works on it.
    """
    withdraw_all(nodes)
    if busy := next(filter(is_under_way, nodes), None):
        raise RequestError(f"{busy}: a node still works on it and ends after the turn under way; then resume again")
    gather(log, nodes, told)


def gather(log: Log, nodes: Sequence[Path], told: Callable[[Record], None], asked_after: int = 0) -> None:
    """Append what is new in the logs of nodes to the run's, and tell of each turn. `asked_after`: see `lacking`."""
    for fact in lacking(read_run(log.path.parent), filter(None, map(_read, nodes)), asked_after):
        log.append(fact)
        if isinstance(fact, Record):
            told(fact)


def _read(folder: Path) -> Run | None:
    """The log of a node; None before its first line is there."""
    try:
        return read_run(folder)
    except StoreError:
        return None
