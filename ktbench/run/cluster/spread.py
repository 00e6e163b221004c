"""Distributes a sweep over nodes: starts shards with a Hydra launcher and merges their records into the run's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ktbench.config import Launch, Request, launch_jobs
from ktbench.host.environment import environment
from ktbench.results import LOG_NAME, Log, NotKept, Run, read_run
from ktbench.run.cluster.shard_job import run_shard
from ktbench.run.cluster.shards import (
    NODES,
    cut,
    damage_of,
    failures,
    gather,
    is_done,
    is_running,
    nodes_of,
    say_damage,
    shard_of,
    withdraw,
    write_shard,
)
from ktbench.run.open_run import open_run
from ktbench.run.progress import say, trial_progress, warn
from ktbench.run.request import cells_of
from ktbench.spec.errors import RequestError, error_text
from ktbench.spec.record import Cell, Environment, Record
from ktbench.spec.run_spec import MeasureSpec

_POLL_S = 1.0
# How long to wait for shards that no node has started, after a launcher has lost a job.
_GRACE_S = 60.0


def spread(request: Request, launch: Launch, command: list[str]) -> Run:
    """Measure and simulate the cells of a request on nodes, and merge the records into one log.

    A failing node affects only its own cells. An interrupt withdraws all shards and is raised again. Raises
    RequestError.
    """
    cells = cells_of(request)
    launch = one_at_a_time(launch, cells)
    launch.value("_target_")  # rejects unknown keys of the launcher before anything is written
    machine = environment()
    log, _ = open_run(request, cells, machine, command, here=False)
    try:
        SpreadSweep(request=request, launch=launch, cells=cells, machine=machine, log=log).carry_out()
    except KeyboardInterrupt:
        name = log.path.parent.name
        warn(f"interrupted; what nodes have measured is kept: the same command with resume={name} continues")
        raise
    finally:
        log.close()
    return read_run(log.path.parent)


def one_at_a_time(launch: Launch, cells: Sequence[Cell]) -> Launch:
    """The launch. Raises RequestError if it would time two cells at once on this host."""
    if launch.name != "joblib" or all(cell.spec.machine is not None for cell in cells):
        return launch
    launch = launch.with_default("n_jobs", 1)
    if (jobs := launch.value("n_jobs")) != 1:
        raise RequestError(
            f"hydra.launcher.n_jobs={jobs}: timing with two cells at once on one host is refused, and joblib runs "
            "on this one: leave it out, or simulate with machine=NAME"
        )
    return launch


@dataclass(kw_only=True)
class SpreadSweep:
    """A sweep over nodes in progress. Only this process writes `log`, the log of the run."""

    request: Request
    launch: Launch
    cells: tuple[Cell, ...]
    machine: Environment
    log: Log
    _on_record: Callable[[Record], None] = field(init=False)
    _known_records: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._on_record = trial_progress(self.cells)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.log.path.parent

    def carry_out(self) -> None:
        """Launch the unfinished shards and wait for them."""
        attempt = 1 + max((int(folder.name.partition("-")[0]) for folder in nodes_of(self.folder)), default=0)
        shards = self._open_shards(attempt)
        if shards:
            self._launch(shards)

    def _open_shards(self, attempt: int) -> dict[Path, tuple[Cell, ...]]:
        """The cells of every unfinished shard, by the folder to which it is written."""
        run, shards = read_run(self.folder), cut(self.cells, self.launch.jobs)
        self._known_records = len(run.records)
        measures = [self._measure_of(shard) for shard in shards]
        pairs = [pair for pair in zip(shards, measures, strict=True) if not is_done(run, *pair)]
        opened = {}
        for number, (cells, measure) in enumerate(pairs):
            folder = (self.folder / NODES / f"{attempt:03}-{number:03}").resolve()
            write_shard(shard_of(run, cells, measure, mixed=self.request.resume_changed), folder)
            opened[folder] = cells
        say(
            f"{len(opened)} of {len(shards)} shards are launched with {self.launch.name}, logs in {self.folder / NODES}"
        )
        return opened

    def _measure_of(self, shard: Sequence[Cell]) -> MeasureSpec:
        """A shard gets minutes in proportion to its cells, like a block on one machine."""
        measure = self.request.measure
        return replace(measure, max_minutes=measure.max_minutes * len(shard) / len(self.cells))

    def _launch(self, shards: dict[Path, tuple[Cell, ...]]) -> None:
        folders = list(shards)
        try:
            with self._follow_nodes(folders):
                whys = self._end_reasons(folders)
        finally:
            withdraw(*folders)
            self._gather(folders)
        say_damage(damage_of(folders))
        for (folder, cells), why in zip(shards.items(), whys, strict=True):
            run = read_run(self.folder)
            if why and not is_done(run, cells, self._measure_of(cells)):
                say(f"shard {folder.name}: {why}")
                self.log.append(*failures(run, cells, why, self.machine))

    def _end_reasons(self, folders: Sequence[Path]) -> list[str]:
        """Why each shard failed, empty if it did not. A launcher raises an error when a job is lost."""
        try:
            return launch_jobs(self.launch, self.folder / NODES, run_shard, [str(folder) for folder in folders])
        except RequestError:
            raise
        except Exception as error:  # whatever a launcher raises for a lost job
            lines = str(error).strip().splitlines() or [type(error).__name__]
            say(f"{self.launch.name}: {lines[-1]}; waiting for the other nodes")
            wait_for_nodes(folders)
            return [f"{self.launch.name} lost its job: {lines[-1]}"] * len(folders)

    @contextmanager
    def _follow_nodes(self, folders: Sequence[Path]) -> Iterator[None]:
        """Merge records while nodes measure, in a thread, since the launcher blocks this one.

        If that fails, the shards are withdrawn, so that the launcher returns soon, and the error is raised then.
        """
        ended, failed = threading.Event(), list[Exception]()

        def follow() -> None:
            try:
                self._follow(folders, ended)
            except Exception as error:  # raised below, in the main thread
                failed.append(error)
                say(f"{error_text(error)}; shards are withdrawn, their nodes end after the current trial")
                with suppress(OSError):
                    withdraw(*folders)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failed:
            raise failed[0]

    def _follow(self, folders: Sequence[Path], ended: threading.Event) -> None:
        """Raises NotKept, StoreError. A log that cannot be read is read again later."""
        seen, why = 0, ""
        while not ended.wait(_POLL_S):
            try:
                if (size := sum(_size(folder) for folder in folders)) != seen:
                    self._gather(folders)
                seen, why = size, ""
            except NotKept:
                raise
            except OSError as error:
                if error_text(error) != why:
                    say(f"{error_text(error)}; progress of the nodes is shown once their logs are readable again")
                why = error_text(error)

    def _gather(self, folders: Sequence[Path]) -> None:
        """Append new records of the nodes to the run's log."""
        gather(self.log, folders, self._on_record, self._known_records)


def wait_for_nodes(folders: Sequence[Path]) -> None:
    """Return when no node runs a shard and none has started one for a while."""
    last = time.monotonic()
    while True:
        if any(map(is_running, folders)):
            last = time.monotonic()
        elif all(_size(folder) for folder in folders) or time.monotonic() - last > _GRACE_S:
            return
        time.sleep(_POLL_S)


def _size(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return (folder / LOG_NAME).stat().st_size
    return 0
