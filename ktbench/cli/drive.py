"""Carries a planned request out: opens or resumes its run folder, simulates, measures, keeps what there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ktbench.cli.asking import Examiner, require_same_suite
from ktbench.cli.progress import loading, round_ended, say, turns_ended
from ktbench.cli.request import Planned
from ktbench.cli.simulating import simulate_cells
from ktbench.config import Request, RequestPart
from ktbench.core.errors import RequestError
from ktbench.core.outcome import Outcome
from ktbench.core.peers import BY_NAME
from ktbench.core.record import Cell, Environment, Header, Part, Record
from ktbench.core.spec import MeasureSpec
from ktbench.engine.gguf.kept import kept_file
from ktbench.host.environment import environment
from ktbench.host.timing_lock import timing
from ktbench.launch.apart import ChildFailed
from ktbench.launch.exporting import ensure_file
from ktbench.launch.shares import only
from ktbench.launch.sweep import Sweep
from ktbench.plan import worker_bytes
from ktbench.store import Log, Run, free_folder, published_of, read_run
from ktbench.store.find import RUNS, find_run, note_latest


def carry_out(request: Request, planned: Planned, command: list[str]) -> Run:
    """Simulate, have answer what is asked, then measure until the precision goal or the ceiling.

    An interrupt keeps what was measured and is passed on. Raises NotKept where the disk takes no more, and RequestError
    where others are timing on this host.
    """
    times = request.is_timed and bool(planned.runnable)
    with timing(command[3], request.resume or request.run_name or request.sweep.name) if times else nullcontext():
        return _carry_out(request, planned, command)


def _carry_out(request: Request, planned: Planned, command: list[str]) -> Run:
    machine, parts = environment(), parts_of(request)
    published = published_of(parts)
    log, previous = open_run(request, planned.cells, machine, here=bool(planned.here))
    folder, kept = log.path.parent, previous.latest() if previous else {}
    ended = turns_ended(planned.cells)
    sweep = open_sweep(planned, log, machine, kept, ended)
    try:
        if previous is None:
            log.append(header_of(request, planned.cells, machine, folder.name, command), *published)
        log.introduce(machine)
        for record in simulate_cells(planned, machine, kept):
            log.append(record)
            ended(record)
        if request.suite is not None:
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
        if cell.spec.system == "ktbench" or not BY_NAME[cell.spec.system].opaque:
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


def header_of(request: Request, cells: tuple[Cell, ...], machine: Environment, run: str, command: list[str]) -> Header:
    """The first line of a run that plans these cells."""
    return Header(
        run=run,
        title=request.title,
        ablation=request.sweep.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command),
        parts=parts_of(request),
        cells=cells,
        measure=request.measure,
        code_id=machine.code_id,
        env_id=machine.env_id,
        suite=request.suite,
    )


def parts_of(request: Request) -> tuple[Part, ...]:
    """Parts of the run of a request."""
    return tuple(_part(part) for part in request.parts)


def _part(part: RequestPart) -> Part:
    baseline = part.sweep.baseline if part.sweep.arms else part.spec.label
    return Part(
        name=part.name,
        title=part.title,
        baseline=baseline,
        figure=part.sweep.figure,
        published=part.sweep.published,
    )


def open_run(request: Request, cells: tuple[Cell, ...], machine: Environment, *, here: bool) -> tuple[Log, Run | None]:
    """The log to write and the run to go on with, which is read once nobody else can add to it.

    A run that is resumed is under the same code and, where it is measured `here`, on the same machine. Raises
    RequestError.
    """
    log = Log(find_run(request.resume) if request.resume else _new_folder(request), new=request.resume is None)
    try:
        previous = _resumed(request, cells, machine, here=here)
    except RequestError:
        log.close()
        raise
    for damage in previous.damage if previous else ():
        say(f"{damage}: left out, its turn is measured again")
    note_latest(log.path.parent)
    return log, previous


def _new_folder(request: Request) -> Path:
    """A name made of the time is free for one sweep: another may begin in the same second, or the clock be set back."""
    if request.run_name:
        return RUNS / request.run_name
    return free_folder(RUNS, f"{request.sweep.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")


def _resumed(request: Request, cells: tuple[Cell, ...], machine: Environment, *, here: bool) -> Run | None:
    if request.resume is None:
        return None
    run = read_run(find_run(request.resume))
    _require_same_cells(run, cells)
    require_same_suite(run, request.suite)
    ids = [("code", run.header.code_id, machine.code_id)]
    ids += [("machine", run.header.env_id, machine.env_id)] if here else []
    for what, then, now in ids:
        if then != now and not request.resume_changed:
            raise RequestError(
                f"resume={request.resume}: its {what} was {then}, this is {what} {now}; "
                "start a new run, or mix them knowingly with resume_changed=true"
            )
    return run


def _require_same_cells(run: Run, cells: tuple[Cell, ...]) -> None:
    then, now = {cell.key for cell in run.header.cells}, {cell.key for cell in cells}
    if then != now:
        extra = ", ".join(sorted(cell.label for cell in cells if cell.key not in then)) or "none"
        raise RequestError(
            f"resume: {run.header.run} planned other cells ({len(then - now)} of its cells are not asked for now; "
            f"new now: {extra}); repeat the command it was started with: {' '.join(run.header.command)}"
        )
