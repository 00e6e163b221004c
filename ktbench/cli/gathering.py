"""Brings what nodes have recorded into the log of their run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ktbench.cli.progress import say
from ktbench.results import Damage, Log, NoPlan, Run, read_run
from ktbench.results.merge import lacking
from ktbench.run.shares import NODES, is_under_way, withdraw_all
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Record


def nodes_of(folder: Path) -> list[Path]:
    """Folders of all shares that a run was ever cut into, in the order in which they were asked for."""
    return sorted((folder / NODES).glob("*-*"))


def gather_left(log: Log, nodes: Sequence[Path], told: Callable[[Record], None]) -> None:
    """Withdraw what earlier sittings have asked nodes for, and append what those have left to the run's log.

    Raises RequestError where a node still works on it.
    """
    end_nodes(nodes)
    gather(log, nodes, told)
    say_damage(damage_of(nodes))


def end_nodes(nodes: Sequence[Path]) -> None:
    """Withdraw shares. Raises RequestError where a node still works on one."""
    withdraw_all(nodes)
    if busy := next(filter(is_under_way, nodes), None):
        raise RequestError(f"{busy}: a node still works on it and ends after the turn under way; then resume again")


def gather(log: Log, nodes: Sequence[Path], told: Callable[[Record], None], asked_after: int = 0) -> None:
    """Append what is new in the logs of nodes to the run's, and tell of each turn. `asked_after`: see `lacking`."""
    for fact in lacking(read_run(log.path.parent), filter(None, map(_read, nodes)), asked_after):
        log.append(fact)
        if isinstance(fact, Record):
            told(fact)


def say_damage(damage: Iterable[Damage]) -> None:
    """Name lines that are not what was written."""
    for one in damage:
        say(f"{one}: left out; a turn that it held is measured again on resuming")


def damage_of(nodes: Sequence[Path]) -> Iterator[Damage]:
    """Lines of the logs of nodes that are not what was written. Where one is being written they may be on their way."""
    for node in nodes:
        try:
            yield from read_run(node).damage
        except NoPlan as error:
            yield from error.damage


def _read(folder: Path) -> Run | None:
    """The log of a node; None where it has no plan, as before its first line is there. Raises StoreError."""
    try:
        return read_run(folder)
    except NoPlan:
        return None
