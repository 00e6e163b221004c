"""Drives a plan to its end: rounds of turns, one worker per set of weights, every record on disk before the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from ktbench.results.log import Log
from ktbench.run.agreement import logits_file
from ktbench.run.messages import Open
from ktbench.run.worker import Worker, WorkerDied, serve_command
from ktbench.spec.cells import turn_order, worker_groups
from ktbench.spec.memory import WeightsKey
from ktbench.spec.record import Cell, Outcome, Record

OnRecord = Callable[[Record], None]


@dataclass(kw_only=True)
class Sweep:
    """State of a sweep in progress. `kept` holds what a resumed run already has, by (cell key, round).

    `worker_bytes` are those of each worker by the weights it holds, `free_bytes` is what they may hold together: where
    it is not enough for all, workers that the cells under measurement do not need end, the longest idle one first.
    `command` starts a worker (None: what the system of its cells asks for).
    """

    cells: tuple[Cell, ...]
    log: Log
    folder: Path
    code_id: str
    env_id: str
    kept: Mapping[tuple[str, int], Record] = field(default_factory=dict)
    on_record: OnRecord = lambda record: None
    on_load: Callable[[Cell], None] = lambda cell: None
    command: Sequence[str] | None = None
    worker_bytes: Mapping[WeightsKey, int] = field(default_factory=dict)
    free_bytes: int = 0
    _workers: dict[WeightsKey, Worker] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _new: list[Record] = field(default_factory=list)
    _needed: set[WeightsKey] = field(default_factory=set)

    def rounds(self, cells: Sequence[Cell] | None = None) -> Iterator[tuple[Record, ...]]:
        """Run one round of some cells (None: of all) after the other, yielding each finished one's records.

        Records of the resumed run come before those of this session. Ends when every cell has failed; the caller
        decides when to stop before that.
        """
        turns = tuple(self.cells if cells is None else cells)
        keys = {cell.key for cell in turns}
        round_number = 0
        while True:
            self._round(turns, round_number)
            yield self._records_of(turns, round_number)
            if self._lost.issuperset(keys):
                return
            round_number += 1

    def _records_of(self, cells: Sequence[Cell], round_number: int) -> tuple[Record, ...]:
        """The records of a round of these cells, each handed out once."""
        keys = dict.fromkeys(cell.key for cell in cells)
        kept = [self.kept[key, round_number] for key in keys if (key, round_number) in self.kept]
        new = [record for record in self._new if record.cell in keys]
        self._new = [record for record in self._new if record.cell not in keys]
        return (*kept, *new)

    def set_aside(self, cell: Cell, outcome: Outcome, why: str) -> None:
        """Record that a cell is not run at all, unless the resumed run says so already."""
        self._lost.add(cell.key)
        known = self.kept.get((cell.key, 0))
        if known is None or (known.outcome, known.why) != (outcome, why):
            self._keep(self._failure(cell, 0, outcome, why))

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()

    def _round(self, cells: Sequence[Cell], round_number: int) -> None:
        self._needed = {cell.spec.weights_key for cell in cells}
        for cell in turn_order(cells, round_number):
            if cell.key not in self._lost and not self._has(cell, round_number):
                self._keep(self._turn(cell, round_number))

    def _has(self, cell: Cell, round_number: int) -> bool:
        known = self.kept.get((cell.key, round_number))
        return known is not None and known.outcome.timed

    def _turn(self, cell: Cell, round_number: int) -> Record:
        try:
            logits = logits_file(self.folder, cell, self.cells, self.code_id)
            return self._worker(cell).turn(cell, round_number, cell.spec.measure.turn_timeout_s, logits)
        except WorkerDied as died:
            self._workers.pop(cell.spec.weights_key, None)
            return self._failure(cell, round_number, died.outcome, died.why)

    def _worker(self, cell: Cell) -> Worker:
        worker = self._workers.pop(cell.spec.weights_key, None)
        if worker is None:
            self._make_room(cell)
            self.on_load(cell)
            worker = self._start(cell)
        self._workers[cell.spec.weights_key] = worker  # last: the one used most recently
        return worker

    def _make_room(self, cell: Cell) -> None:
        idle = [key for key in self._workers if key not in self._needed]
        while idle and self._held_bytes({cell.spec.weights_key, *self._workers}) > self.free_bytes:
            self._workers.pop(idle.pop(0)).stop()

    def _held_bytes(self, keys: Iterable[WeightsKey]) -> int:
        return sum(self.worker_bytes.get(key, 0) for key in keys)

    def _start(self, cell: Cell) -> Worker:
        group = next(group for group in worker_groups(self.cells) if cell in group)
        served = tuple(other for other in group if other.key not in self._lost)
        opened = Open(cells=served, code_id=self.code_id, env_id=self.env_id, sitting=uuid4().hex[:8])
        command = self.command or serve_command(cell.spec)
        return Worker.start(opened, self.folder / "worker.log", cell.spec.measure.load_timeout_s, command)

    def _keep(self, record: Record) -> None:
        """A cell that failed sits out the rest of the sweep; resuming the run gives it another chance."""
        if not record.outcome.timed:
            self._lost.add(record.cell)
        self.log.append(record)
        self._new.append(record)
        self.on_record(record)

    def _failure(self, cell: Cell, round_number: int, outcome: Outcome, why: str) -> Record:
        return Record(
            cell=cell.key,
            label=cell.label,
            round=round_number,
            outcome=outcome,
            why=why,
            provenance="measured",
            code_id=self.code_id,
            env_id=self.env_id,
            sitting="",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
