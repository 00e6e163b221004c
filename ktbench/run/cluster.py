"""Spreads a sweep over nodes: shares out, by a launcher of Hydra's; facts back, into the one log of the run."""

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
from ktbench.run.open_run import open_run
from ktbench.run.progress import say, turns_ended
from ktbench.run.request import cells_of
from ktbench.run.shard_job import run_shard
from ktbench.run.shards import (
    NODES,
    cut,
    damage_of,
    failures,
    gather,
    is_done,
    is_under_way,
    nodes_of,
    say_damage,
    shard_of,
    withdraw_all,
    write_shard,
)
from ktbench.spec.errors import RequestError, error_text
from ktbench.spec.record import Cell, Environment, Record
from ktbench.spec.run_spec import MeasureSpec

_POLL_S = 1.0
# After a launcher has lost a job: how long shares that no node has begun with are waited for.
_GRACE_S = 60.0


def spread(request: Request, launch: Launch, command: list[str]) -> Run:
    """Have the cells of a request measured and simulated on nodes, and bring what they measured into one log.

    A node that fails costs its own cells. An interrupt withdraws all shares, and is passed on. Raises RequestError.
    """
    cells = cells_of(request)
    launch = one_at_a_time(launch, cells)
    launch.value("_target_")  # refuses keys that the launcher does not have before anything is written
    machine = environment()
    log, _ = open_run(request, cells, machine, command, here=False)
    try:
        Spread(request=request, launch=launch, cells=cells, machine=machine, log=log).carry_out()
    except KeyboardInterrupt:
        name = log.path.parent.name
        say(f"interrupted; what nodes have measured is kept: the same command with resume={name} goes on")
        raise
    finally:
        log.close()
    return read_run(log.path.parent)


def one_at_a_time(launch: Launch, cells: Sequence[Cell]) -> Launch:
    """The launch, refused where it would time two cells at once on this host."""
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
class Spread:
    """A sweep over nodes in progress. `log` is the run's, which this process alone writes."""

    request: Request
    launch: Launch
    cells: tuple[Cell, ...]
    machine: Environment
    log: Log
    _told: Callable[[Record], None] = field(init=False)
    _asked_after: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._told = turns_ended(self.cells)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.log.path.parent

    def carry_out(self) -> None:
        """Launch the shares that are open, and wait for them."""
        attempt = 1 + max((int(folder.name.partition("-")[0]) for folder in nodes_of(self.folder)), default=0)
        shares = self._open_shards(attempt)
        if shares:
            self._launch(shares)

    def _open_shards(self, attempt: int) -> dict[Path, tuple[Cell, ...]]:
        """By folder the cells of every share in which something is lacking, each asked for in its folder."""
        run, shares = read_run(self.folder), cut(self.cells, self.launch.jobs)
        self._asked_after = len(run.records)
        measures = [self._measure_of(share) for share in shares]
        pairs = [pair for pair in zip(shares, measures, strict=True) if not is_done(run, *pair)]
        found = {}
        for number, (cells, measure) in enumerate(pairs):
            folder = (self.folder / NODES / f"{attempt:03}-{number:03}").resolve()
            write_shard(shard_of(run, cells, measure, mixed=self.request.resume_changed), folder)
            found[folder] = cells
        say(f"{len(found)} of {len(shares)} shares go to {self.launch.name}, logs in {self.folder / NODES}")
        return found

    def _measure_of(self, share: Sequence[Cell]) -> MeasureSpec:
        """The minutes of a sweep go to its shares by their cells, as they do to blocks on one machine."""
        measure = self.request.measure
        return replace(measure, max_minutes=measure.max_minutes * len(share) / len(self.cells))

    def _launch(self, shares: dict[Path, tuple[Cell, ...]]) -> None:
        folders = list(shares)
        try:
            with self._following(folders):
                whys = self._ended(folders)
        finally:
            withdraw_all(folders)
            self._gather(folders)
        say_damage(damage_of(folders))
        for (folder, cells), why in zip(shares.items(), whys, strict=True):
            run = read_run(self.folder)
            if why and not is_done(run, cells, self._measure_of(cells)):
                say(f"share {folder.name}: {why}")
                self.log.append(*failures(run, cells, why, self.machine))

    def _ended(self, folders: Sequence[Path]) -> list[str]:
        """Why each share failed, empty where it did not. A job that is lost without a word ends the launcher's wait."""
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
    def _following(self, folders: Sequence[Path]) -> Iterator[None]:
        """Bring in what nodes measure as they do, in a thread of its own: the launcher's wait blocks this one.

        Where that can no more the shares are withdrawn, so that the wait ends soon, and why is raised then.
        """
        ended, failed = threading.Event(), list[Exception]()

        def follow() -> None:
            try:
                self._follow(folders, ended)
            except Exception as error:  # nobody would see it in this thread
                failed.append(error)
                say(f"{error_text(error)}; shards are withdrawn, their nodes end after the current trial")
                with suppress(OSError):
                    withdraw_all(folders)

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
        """Raises NotKept, StoreError. What cannot be read now is read later, in the end when all shares have ended."""
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
        """Append what is new in the logs of nodes to the run's."""
        gather(self.log, folders, self._told, self._asked_after)


def wait_for_nodes(folders: Sequence[Path]) -> None:
    """Return when no node works on a share and none has begun with one for a while."""
    last = time.monotonic()
    while True:
        if any(map(is_under_way, folders)):
            last = time.monotonic()
        elif all(_size(folder) for folder in folders) or time.monotonic() - last > _GRACE_S:
            return
        time.sleep(_POLL_S)


def _size(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return (folder / LOG_NAME).stat().st_size
    return 0
