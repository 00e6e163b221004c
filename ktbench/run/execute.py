"""Executes a planned request: simulates, evaluates, measures, and logs every record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ktbench.config import Request
from ktbench.engine.gguf.export import kept_file
from ktbench.host.environment import environment
from ktbench.host.timing_lock import timing
from ktbench.results import Log, Run, read_run
from ktbench.results.stopping import SweepCriterion
from ktbench.run.child import ChildFailed
from ktbench.run.evaluation import EvalRunner
from ktbench.run.export import ensure_file
from ktbench.run.messages import RecordIds
from ktbench.run.open_run import end_shards, kept_of, open_run, parts_of
from ktbench.run.progress import RoundProgress, cell_names, clear_status, loading, say, trial_progress, waiting, warn
from ktbench.run.request import CellPlan
from ktbench.run.sweep import Sweep
from ktbench.sim import simulate_cells
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Cell, Environment, Outcome, Part, Record
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.step.memory import worker_bytes
from ktbench.spec.suite import SuiteSpec


def execute(request: Request, planned: CellPlan, command: list[str]) -> Run:
    """Simulate, evaluate, then measure until the precision goal or a ceiling.

    An interrupt keeps what was measured and is raised again. Raises NotKept if the log cannot be written, and
    RequestError if another process is timing on this host, unless the request is to wait.
    """
    is_timed = request.is_timed and bool(planned.runnable)
    if is_timed and request.resume:
        end_shards(request.resume, planned.cells)
    run, on_wait = request.resume or request.run_name or request.sweep.name, waiting if request.wait else None
    with timing(command[3], run, on_wait, for_any=True) if is_timed else nullcontext():
        return _execute(request, planned, command)


def _execute(request: Request, planned: CellPlan, command: list[str]) -> Run:
    machine = environment()
    log, previous = open_run(request, planned.cells, machine, command, here=bool(planned.here))
    if request.notice:
        say(request.notice)
    folder, kept = log.path.parent, kept_of(previous)
    on_record = trial_progress(planned.cells)
    sweep = open_sweep(planned, log, machine, kept, on_record)
    try:
        log.introduce(machine)
        for record in simulate_cells(planned.simulated, planned.unsupported, machine, kept):
            log.append(record)
            on_record(record)
        parts = parts_of(request)
        if request.suite is not None:
            evaluate(request.suite, planned, parts, machine, log, previous)
        if request.is_timed:
            measure_cells(sweep, planned, parts, request.measure)
    except KeyboardInterrupt:
        warn(f"interrupted; what was measured is kept: the same command with resume={folder.name} continues")
        raise
    finally:
        clear_status()
        sweep.close()
        log.close()
    return read_run(folder)


def evaluate(
    suite: SuiteSpec, planned: CellPlan, parts: tuple[Part, ...], machine: Environment, log: Log, previous: Run | None
) -> None:
    """Evaluate the cells of a plan on the tasks that the `previous` run, if any, lacks."""
    folder = log.path.parent
    created = (previous or read_run(folder)).header.created
    runner = EvalRunner(
        suite=suite, planned=planned, parts=parts, machine=machine, log=log, folder=folder, created=created
    )
    runner.run_all(previous)


def open_sweep(
    planned: CellPlan,
    log: Log,
    machine: Environment,
    kept: Mapping[tuple[str, int], Record],
    on_record: Callable[[Record], None],
) -> Sweep:
    """The sweep over the cells of a plan that are measured here; `log` and `on_record` get its records."""
    return Sweep(
        cells=planned.here,
        log=log,
        folder=log.path.parent,
        ids=RecordIds(code_id=machine.code_id, env_id=machine.env_id),
        kept=kept,
        worker_bytes=worker_bytes(planned.runnable, planned.memory),
        free_bytes=planned.memory.free_bytes,
        on_record=on_record,
        on_load=loading,
    )


def measure_cells(sweep: Sweep, planned: CellPlan, parts: Sequence[Part], measure: MeasureSpec) -> None:
    """Measure every block until its goal or the ceiling; cells that cannot run get a record with the reason."""
    for cell in planned.here:
        if cell.key in planned.unsupported:
            sweep.set_aside(cell, Outcome.UNSUPPORTED, planned.unsupported[cell.key])
    _write_files(sweep, planned)
    names = cell_names(planned.cells)
    for block in planned.blocks:
        _measure_block(sweep, block, parts, _part_of(measure, len(block), len(planned.runnable)), names)


def _measure_block(
    sweep: Sweep, block: Sequence[Cell], parts: Sequence[Part], measure: MeasureSpec, names: dict[str, str]
) -> None:
    criterion, progress = SweepCriterion(block, parts, measure, names), RoundProgress(block, names, measure)
    for ended in sweep.rounds(block, lambda took_s: criterion.minutes + took_s / 60 >= measure.max_minutes):
        criterion.add(ended.records, is_whole=ended.is_whole)
        is_resumed = all(sweep.kept.get((record.cell, record.round)) is record for record in ended.records)
        if (
            criterion.finished() or not is_resumed
        ):  # existing results of a resumed run are shown once, with the following ones
            progress.round_ended(criterion)
        if criterion.finished():
            say(f"stopped: {criterion.why()}")
            return


def _part_of(measure: MeasureSpec, cells: int, of: int) -> MeasureSpec:
    """The minutes of a sweep are divided among its blocks by their numbers of cells."""
    return replace(measure, max_minutes=measure.max_minutes * cells / of) if cells < of else measure


def _write_files(sweep: Sweep, planned: CellPlan) -> None:
    """Write GGUF files for the peers that run them; cells whose file cannot be written are set aside."""
    failed: dict[Path, ChildFailed] = {}
    for cell in planned.runnable:
        if cell.spec.system == OURS or not peer_of(cell.spec.system).gguf:
            continue
        path = kept_file(cell.spec).path
        try:
            if path not in failed:
                ensure_file(cell.spec, say)
        except ChildFailed as error:
            failed[path] = error
        if why := failed.get(path):
            sweep.set_aside(cell, why.outcome, f"no GGUF file: {why}")
