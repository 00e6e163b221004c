"""Carries a planned request out: opens or resumes its run folder, simulates, measures, keeps what there is."""

from __future__ import annotations

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
from ktbench.core.record import Cell, Environment, Header, Part
from ktbench.core.spec import MeasureSpec
from ktbench.engine.gguf.kept import kept_file
from ktbench.host.environment import environment
from ktbench.launch.apart import ChildFailed
from ktbench.launch.exporting import ensure_file
from ktbench.launch.sweep import Sweep
from ktbench.plan import worker_bytes
from ktbench.store import LOG_NAME, Log, Run, published_of, read_run
from ktbench.store.find import RUNS, find_run


def carry_out(request: Request, planned: Planned, command: list[str]) -> Run:
    """Simulate, have answer what is asked, then measure until the precision goal or the ceiling.

    An interrupt keeps what was measured and is passed on.
    """
    machine, parts = environment(), tuple(_part(part) for part in request.parts)
    published = published_of(parts)
    previous = _resumed(request, planned, machine)
    folder = previous.folder if previous else _new_folder(request)
    log, kept = Log(folder), previous.latest() if previous else {}
    ended = turns_ended(planned.cells)
    sweep = Sweep(
        cells=planned.here,
        log=log,
        folder=folder,
        code_id=machine.code_id,
        env_id=machine.env_id,
        kept=kept,
        worker_bytes=worker_bytes(planned.runnable, planned.cache_bytes),
        free_bytes=planned.free_bytes,
        on_record=ended,
        on_load=loading,
    )
    try:
        if previous is None:
            log.append(_header(request, planned, parts, machine, folder.name, command), *published)
        log.append(machine)
        for record in simulate_cells(planned, machine, kept):
            log.append(record)
            ended(record)
        if request.suite is not None:
            examiner = Examiner(
                suite=request.suite, planned=planned, parts=parts, machine=machine, log=log, folder=folder
            )
            examiner.ask_all(previous)
        if request.is_timed:
            _measure(sweep, planned, request.measure)
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is kept: the same command with resume={folder.name} goes on")
        raise
    finally:
        sweep.close()
        log.close()
    return read_run(folder)


def _measure(sweep: Sweep, planned: Planned, measure: MeasureSpec) -> None:
    for cell in planned.here:
        if cell.key in planned.lacking:
            sweep.set_aside(cell, Outcome.UNSUPPORTED, planned.lacking[cell.key])
    _write_files(sweep, planned)
    for block in planned.blocks:
        _measure_block(sweep, block, _share(measure, len(block), len(planned.runnable)))


def _write_files(sweep: Sweep, planned: Planned) -> None:
    """GGUF files for the peers that run them; where one cannot be written it costs the cells that need it."""
    failed: dict[Path, str] = {}
    for cell in planned.runnable:
        if cell.spec.system == "ktbench" or not BY_NAME[cell.spec.system].opaque:
            continue
        path = kept_file(cell.spec).path
        try:
            if path not in failed:
                ensure_file(cell.spec, say)
        except ChildFailed as error:
            failed[path] = str(error)
        if path in failed:
            sweep.set_aside(cell, Outcome.CRASHED, f"no GGUF file: {failed[path]}")


def _measure_block(sweep: Sweep, block: tuple[Cell, ...], measure: MeasureSpec) -> None:
    for number in sweep.rounds(block):
        if why := round_ended(_only(read_run(sweep.folder), block), measure, number):
            say(f"stopped: {why}")
            return


def _share(measure: MeasureSpec, cells: int, of: int) -> MeasureSpec:
    """The minutes of a sweep go to its blocks by their cells."""
    return replace(measure, max_minutes=measure.max_minutes * cells / of) if cells < of else measure


def _only(run: Run, cells: tuple[Cell, ...]) -> Run:
    """A run as if it had planned these cells alone."""
    keys, parts = {cell.key for cell in cells}, {cell.part for cell in cells}
    header = replace(run.header, cells=cells, parts=tuple(part for part in run.header.parts if part.name in parts))
    return replace(run, header=header, records=tuple(record for record in run.records if record.cell in keys))


def _header(
    request: Request, planned: Planned, parts: tuple[Part, ...], machine: Environment, run: str, command: list[str]
) -> Header:
    return Header(
        run=run,
        title=request.title,
        ablation=request.sweep.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command),
        parts=parts,
        cells=planned.cells,
        measure=request.measure,
        code_id=machine.code_id,
        env_id=machine.env_id,
        suite=request.suite,
    )


def _part(part: RequestPart) -> Part:
    baseline = part.sweep.baseline if part.sweep.arms else part.spec.label
    return Part(
        name=part.name,
        title=part.title,
        baseline=baseline,
        figure=part.sweep.figure,
        published=part.sweep.published,
    )


def _new_folder(request: Request) -> Path:
    name = request.run_name or f"{request.sweep.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = RUNS / name
    if (folder / LOG_NAME).exists():
        raise RequestError(f"run_name={name}: {folder} holds a run already; continue it with resume={name}")
    return folder


def _resumed(request: Request, planned: Planned, machine: Environment) -> Run | None:
    """The run to go on with, once it is sure that it is the same cells under the same code on the same machine.

    What is all simulated does not depend on the machine.
    """
    if request.resume is None:
        return None
    run = read_run(find_run(request.resume))
    _require_same_cells(run, planned)
    require_same_suite(run, request.suite)
    ids = [("code", run.header.code_id, machine.code_id)]
    ids += [("machine", run.header.env_id, machine.env_id)] if planned.here else []
    for what, then, now in ids:
        if then != now and not request.resume_changed:
            raise RequestError(
                f"resume={request.resume}: its {what} was {then}, this is {what} {now}; "
                "start a new run, or mix them knowingly with resume_changed=true"
            )
    return run


def _require_same_cells(run: Run, planned: Planned) -> None:
    then, now = {cell.key for cell in run.header.cells}, {cell.key for cell in planned.cells}
    if then != now:
        extra = ", ".join(sorted(cell.label for cell in planned.cells if cell.key not in then)) or "none"
        raise RequestError(
            f"resume: {run.header.run} planned other cells ({len(then - now)} of its cells are not asked for now; "
            f"new now: {extra}); repeat the command it was started with: {' '.join(run.header.command)}"
        )
