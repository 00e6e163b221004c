"""Measures the cells of a plan: rounds of trials, one worker per set of weights, each record logged before the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from ktbench.results.log import Log
from ktbench.run.agreement import logits_file
from ktbench.run.messages import OpenSession, RecordIds, new_record
from ktbench.run.worker import OnLoading, Worker, WorkerDied, serve_command
from ktbench.spec.cells import turn_order, worker_groups
from ktbench.spec.record import Cell, Outcome, Record
from ktbench.spec.step.memory import WeightsKey

OnRecord = Callable[[Record], None]
# Receives the loading progress of a cell's worker until it is loaded.
OnLoad = Callable[[Cell], AbstractContextManager[OnLoading]]
# Whether no time is left after this many seconds of trials in a round.
IsOver = Callable[[float], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The records of a round; if it is not `is_whole`, of the cells that ran before time was up."""

    records: tuple[Record, ...]
    is_whole: bool


@dataclass(kw_only=True)
class Sweep:
    """State of a sweep in progress. `kept` holds what a resumed run already has, by (cell key, round).

    `worker_bytes` are the bytes of each worker by its weights, `free_bytes` the limit for all together: if it is too
    small, workers that the current cells do not need are stopped, the longest idle one first. `command` starts a worker
    (None: the one for the system of its cells).
    """

    cells: tuple[Cell, ...]
    log: Log
    folder: Path
    ids: RecordIds
    kept: Mapping[tuple[str, int], Record] = field(default_factory=dict)
    on_record: OnRecord = lambda record: None
    on_load: OnLoad = lambda cell: nullcontext(lambda loading: None)
    command: Sequence[str] | None = None
    worker_bytes: Mapping[WeightsKey, int] = field(default_factory=dict)
    free_bytes: int = 0
    _workers: dict[WeightsKey, Worker] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _new: list[Record] = field(default_factory=list)
    _needed: set[WeightsKey] = field(default_factory=set)

    def rounds(self, cells: Sequence[Cell] | None = None, is_over: IsOver = lambda took_s: False) -> Iterator[Round]:
        """Run rounds of some cells (None: of all), yielding each once it has ended.

        Records of the resumed run come before those of this session. A round ends before its next trial if `is_over` is
        true for the seconds its trials took so far, and is then the last one. Also ends when every cell has failed; the
        caller decides when to stop before that.
        """
        cells = self.cells if cells is None else cells
        keys = {cell.key for cell in cells}
        round_number = 0
        while True:
            is_whole = self._round(cells, round_number, is_over)
            yield Round(records=self._records_of(cells, round_number), is_whole=is_whole)
            if not is_whole or self._lost.issuperset(keys):
                return
            round_number += 1

    def _records_of(self, cells: Sequence[Cell], round_number: int) -> tuple[Record, ...]:
        """The records of a round of these cells, each returned once."""
        keys = dict.fromkeys(cell.key for cell in cells)
        kept = [self.kept[key, round_number] for key in keys if (key, round_number) in self.kept]
        new = [record for record in self._new if record.cell in keys]
        self._new = [record for record in self._new if record.cell not in keys]
        return (*kept, *new)

    def set_aside(self, cell: Cell, outcome: Outcome, why: str) -> None:
        """Record that a cell is not run at all, unless the resumed run has such a record."""
        self._lost.add(cell.key)
        known = self.kept.get((cell.key, 0))
        if known is None or (known.outcome, known.why) != (outcome, why):
            self._keep(new_record(cell, 0, self.ids, outcome, why))

    def close(self) -> None:
        """End all workers."""
        self._unload(set(self._workers))

    def _unload(self, keys: set[WeightsKey]) -> None:
        """End workers; the next trial of a cell starts a new one, which reloads the weights."""
        for key in keys & self._workers.keys():
            self._workers.pop(key).stop()

    def _round(self, cells: Sequence[Cell], round_number: int, is_over: IsOver) -> bool:
        """Whether every cell ran."""
        self._needed = {cell.weights_key for cell in cells}
        if round_number and any(_begins_block(cell, round_number) for cell in cells):
            self._unload(self._needed)
        took_s = sum(known.took_s for cell in cells if (known := self.kept.get((cell.key, round_number))))
        for cell in turn_order(cells, round_number):
            if cell.key in self._lost or self._has(cell, round_number):
                continue
            if is_over(took_s):
                return False
            self._keep(record := self._trial(cell, round_number))
            took_s += record.took_s
        return True

    def _has(self, cell: Cell, round_number: int) -> bool:
        known = self.kept.get((cell.key, round_number))
        return known is not None and known.outcome.timed

    def _trial(self, cell: Cell, round_number: int) -> Record:
        try:
            logits = logits_file(self.folder, cell, self.cells, self.ids.code_id)
            return self._worker(cell).trial(cell, round_number, cell.spec.measure.turn_timeout_s, logits)
        except WorkerDied as died:
            self._workers.pop(cell.weights_key, None)
            return new_record(cell, round_number, self.ids, died.outcome, died.why)

    def _worker(self, cell: Cell) -> Worker:
        worker = self._workers.pop(cell.weights_key, None)
        if worker is None:
            self._make_room(cell)
            with self.on_load(cell) as on_loading:
                worker = self._start(cell, on_loading)
        self._workers[cell.weights_key] = worker  # last: the one used most recently
        return worker

    def _make_room(self, cell: Cell) -> None:
        idle = [key for key in self._workers if key not in self._needed]
        while idle and self._held_bytes({cell.weights_key, *self._workers}) > self.free_bytes:
            self._workers.pop(idle.pop(0)).stop()

    def _held_bytes(self, keys: Iterable[WeightsKey]) -> int:
        return sum(self.worker_bytes.get(key, 0) for key in keys)

    def _start(self, cell: Cell, on_loading: OnLoading) -> Worker:
        group = next(group for group in worker_groups(self.cells) if cell in group)
        served = tuple(other for other in group if other.key not in self._lost)
        opened = OpenSession(cells=served, ids=replace(self.ids, worker_session=uuid4().hex[:8]))
        command = self.command or serve_command(cell.spec)
        timeout_s = cell.spec.measure.load_timeout_s
        return Worker.start(opened, self.folder / "worker.log", timeout_s, command, on_loading)

    def _keep(self, record: Record) -> None:
        """Log a record. A cell that failed is skipped for the rest of the sweep; a resumed run tries it again."""
        if not record.outcome.timed:
            self._lost.add(record.cell)
        self.log.append(record)
        self._new.append(record)
        self.on_record(record)


def _begins_block(cell: Cell, round_number: int) -> bool:
    """Whether the weights of a cell are reloaded before a round."""
    measure = cell.spec.measure
    return measure.load_of(round_number) != measure.load_of(round_number - 1)
