"""Carries a planned request out: simulates, asks, measures, keeps what there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ktbench.cli.asking import Examiner
from ktbench.cli.opening import end_shares, kept_of, open_run, parts_of
from ktbench.cli.progress import loading, round_ended, say, turns_ended
from ktbench.cli.request import Planned
from ktbench.config import Request
from ktbench.engine.gguf.export import kept_file
from ktbench.host.environment import environment
from ktbench.host.timing_lock import timing
from ktbench.results import Log, Run, read_run
from ktbench.run.apart import ChildFailed
from ktbench.run.exporting import ensure_file
from ktbench.run.shares import only
from ktbench.run.sweep import Sweep
from ktbench.sim.records import simulate_cells
from ktbench.spec.memory import worker_bytes
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Cell, Environment, Outcome, Record
from ktbench.spec.run_spec import MeasureSpec


def carry_out(request: Request, planned: Planned, command: list[str]) -> Run:
    """Simulate, have answer what is asked, then measure until the precision goal or the ceiling.

    An interrupt keeps what was measured and is passed on. Raises NotKept where the disk takes no more, and RequestError
    where others are timing on this host.
    """
    times = request.is_timed and bool(planned.runnable)
    if times and request.resume:
        end_shares(request.resume, planned.cells)
    with timing(command[3], request.resume or request.run_name or request.sweep.name) if times else nullcontext():
        return _carry_out(request, planned, command)


def _carry_out(request: Request, planned: Planned, command: list[str]) -> Run:
    machine = environment()
    log, previous = open_run(request, planned.cells, machine, command, here=bool(planned.here))
    folder, kept = log.path.parent, kept_of(previous)
    ended = turns_ended(planned.cells)
    sweep = open_sweep(planned, log, machine, kept, ended)
    try:
        log.introduce(machine)
        for record in simulate_cells(planned.simulated, planned.lacking, machine, kept):
            log.append(record)
            ended(record)
        if request.suite is not None:
            parts = parts_of(request)
            examiner = Examiner(
                suite=request.suite, planned=planned, parts=parts, machine=machine, log=log, folder=folder
            )
            examiner.ask_all(previous)
        if request.is_timed:
            measure_cells(sweep, planned, request.measure)
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is kept: the same command with resume={folder.name} goes on")
        raise
    finally:
        sweep.close()
        log.close()
    return read_run(folder)


def open_sweep(
    planned: Planned,
    log: Log,
    machine: Environment,
    kept: Mapping[tuple[str, int], Record],
    on_record: Callable[[Record], None],
) -> Sweep:
    """The sweep over the cells of a plan that are measured here; its records go to `log` and to `on_record`."""
    return Sweep(
        cells=planned.here,
        log=log,
        folder=log.path.parent,
        code_id=machine.code_id,
        env_id=machine.env_id,
        kept=kept,
        worker_bytes=worker_bytes(planned.runnable, planned.cache_bytes),
        free_bytes=planned.free_bytes,
        on_record=on_record,
        on_load=loading,
    )


def measure_cells(sweep: Sweep, planned: Planned, measure: MeasureSpec) -> None:
    """Measure every block until its goal or the ceiling; cells that cannot run are set aside with the reason."""
    for cell in planned.here:
        if cell.key in planned.lacking:
            sweep.set_aside(cell, Outcome.UNSUPPORTED, planned.lacking[cell.key])
    _write_files(sweep, planned)
    for block in planned.blocks:
        _measure_block(sweep, block, _share(measure, len(block), len(planned.runnable)))


def _write_files(sweep: Sweep, planned: Planned) -> None:
    """GGUF files for the peers that run them; where one cannot be written it costs the cells that need it."""
    failed: dict[Path, ChildFailed] = {}
    for cell in planned.runnable:
        if cell.spec.system == "ktbench" or not BY_NAME[cell.spec.system].black_box:
            continue
        path = kept_file(cell.spec).path
        try:
            if path not in failed:
                ensure_file(cell.spec, say)
        except ChildFailed as error:
            failed[path] = error
        if why := failed.get(path):
            sweep.set_aside(cell, why.outcome, f"no GGUF file: {why}")


def _measure_block(sweep: Sweep, block: tuple[Cell, ...], measure: MeasureSpec) -> None:
    for number in sweep.rounds(block):
        if why := round_ended(only(read_run(sweep.folder), block), measure, number):
            say(f"stopped: {why}")
            return


def _share(measure: MeasureSpec, cells: int, of: int) -> MeasureSpec:
    """The minutes of a sweep go to its blocks by their cells."""
    return replace(measure, max_minutes=measure.max_minutes * cells / of) if cells < of else measure
