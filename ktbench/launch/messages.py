"""What parent and worker say to each other: one JSON line per message over two pipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

import msgspec

from ktbench.core.record import Cell, Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """Parent's first message: the cells the worker will serve, and the ids that go into its records."""

    cells: tuple[Cell, ...]
    code_id: str
    env_id: str
    sitting: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Parent: take this turn."""

    cell: Cell
    round: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Worker: ready (no record), a turn's record, or no memory left (`no_memory` says where)."""

    record: Record | None = None
    no_memory: str = ""


def send(pipe: IO[bytes], message: Open | Turn | Answer) -> None:
    """Write one message and push it out."""
    pipe.write(msgspec.json.encode(message) + b"\n")
    pipe.flush()
