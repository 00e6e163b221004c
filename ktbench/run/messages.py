"""Messages between parent and worker: one JSON line each, over two pipes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO

import msgspec

from ktbench.engine.loading.progress import Loading
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordIds:
    """Ids in every record: code, machine, and the worker session (empty without one)."""

    code_id: str
    env_id: str
    worker_session: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSession:
    """Parent's first message: the cells that the worker serves, and the ids that go into its records."""

    cells: tuple[Cell, ...]
    ids: RecordIds


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Parent: measure one trial. `logits` is the file with which the cell's logits are compared, if any."""

    cell: Cell
    round: int
    logits: str | None = None


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Parent: trace the roles in one step of this cell."""

    cell: Cell


# Requests from the parent to a worker that is ready.
WorkerRequest = TrialRequest | TraceRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """Worker: ready (nothing set), the record of a trial, a timeline or why there is none (`unsupported`).

    `no_memory` says where memory ran out. Before a worker is ready it reports the progress of `loading`.
    """

    record: Record | None = None
    timeline: Timeline | None = None
    unsupported: str = ""
    no_memory: str = ""
    loading: Loading | None = None


def encode_line(message: OpenSession | WorkerRequest | Response) -> bytes:
    """A message as one line."""
    return msgspec.json.encode(message) + b"\n"


def send(pipe: IO[bytes], message: Response) -> None:
    """Write one response and flush it."""
    pipe.write(encode_line(message))
    pipe.flush()


def new_record(cell: Cell, round_number: int, ids: RecordIds, outcome: Outcome, why: str = "") -> Record:
    """A record without samples for a trial that starts now."""
    return Record(
        cell=cell.key,
        label=cell.label,
        round=round_number,
        outcome=outcome,
        why=why,
        provenance="measured" if cell.spec.machine is None else "simulated",
        code_id=ids.code_id,
        env_id=ids.env_id,
        worker_session=ids.worker_session,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
