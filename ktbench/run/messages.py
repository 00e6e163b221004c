"""What parent and worker say to each other: one JSON line per message over two pipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

import msgspec

from ktbench.spec.record import Cell, Record
from ktbench.spec.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """Parent's first message: the cells the worker will serve, and the ids that go into its records."""

    cells: tuple[Cell, ...]
    code_id: str
    env_id: str
    sitting: str


class Turn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Parent: take this turn. `logits` is the file that those of its cell are held against, if any."""

    cell: Cell
    round: int
    logits: str | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Parent: say what the roles do in a step of this cell."""

    cell: Cell


# What a parent asks of a worker that is ready.
Task = Turn | Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Worker: ready (nothing set), a turn's record, a trace's timeline or why there is none (`unsupported`).

    `no_memory` says where memory ran out.
    """

    record: Record | None = None
    timeline: Timeline | None = None
    unsupported: str = ""
    no_memory: str = ""


def encoded(message: Open | Task | Answer) -> bytes:
    """One line that stands for a message."""
    return msgspec.json.encode(message) + b"\n"


def send(pipe: IO[bytes], message: Answer) -> None:
    """Write one answer and push it out."""
    pipe.write(encoded(message))
    pipe.flush()
