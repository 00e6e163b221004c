"""Opens the folder of a run: a new one with its plan, or one to resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ktbench.config import Request, RequestPart
from ktbench.config.app import job_files
from ktbench.files import write_whole
from ktbench.host.code import read_changes
from ktbench.host.describe import read_local_machine
from ktbench.results import Log, Run, free_folder, published_of, read_run
from ktbench.results.find import RUNS, find_run, note_latest
from ktbench.run.cluster.shards import end_nodes, gather_left, nodes_of, say_damage, whole_rounds
from ktbench.run.evaluation import require_same_suite
from ktbench.run.progress import say, trial_progress
from ktbench.run.request import COMMAND
from ktbench.spec.errors import RequestError
from ktbench.spec.published import Published
from ktbench.spec.record import Cell, Environment, Header, Part, Record
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.sweep import NO_STYLE


def open_run(
    request: Request, cells: tuple[Cell, ...], machine: Environment, command: list[str], *, here: bool
) -> tuple[Log, Run | None]:
    """The log to write, with its plan, and the run to resume, read after the log is locked.

    Records left by its nodes are merged first. It is resumed only with the same code and, if it is measured `here`, on
    the same machine. Raises RequestError, and NotKept if the log cannot be written.
    """
    published = published_of(parts_of(request))
    log = Log(find_run(request.resume) if request.resume else _new_folder(request), new=request.resume is None)
    try:
        if request.resume is None:
            previous = None
            log.append(header_of(request, cells, machine, log.path.parent.name, command), *published)
            _keep_configuration(log.path.parent, command)
        else:
            previous = _resume(request, cells, machine, log, here=here)
            _restore(log, previous, published)
    except BaseException:
        log.close()
        raise
    note_latest(log.path.parent)
    if machine.facts.get("dirty"):
        _keep_changes(log.path.parent, machine.code_id)
    return log, previous


def _keep_changes(folder: Path, code_id: str) -> None:
    """Save uncommitted code changes next to the log: without them nobody could repeat the measurement."""
    file = folder / f"changes-{code_id}.diff"
    if not file.exists() and (changes := read_changes()):
        with suppress(OSError):  # the run is complete without it
            write_whole(file, changes)


def _keep_configuration(folder: Path, command: list[str]) -> None:
    """Keep the composed configuration next to the log, in the files that Hydra writes for its own jobs."""
    for name, text in job_files(command[len(COMMAND) :], read_local_machine).items():
        with suppress(OSError):  # the run is whole without it
            write_whole(folder / ".hydra" / name, text)


def end_shards(name: str, cells: tuple[Cell, ...]) -> None:
    """Withdraw the shards of the run `name`: a node may hold the timing lock of this host.

    Raises RequestError if one still runs, or if the run planned other cells or is being written.
    """
    log = Log(find_run(name))
    try:
        require_same_cells(read_run(log.path.parent), cells)
        end_nodes(nodes_of(log.path.parent))
    finally:
        log.close()


def kept_of(run: Run | None) -> Mapping[tuple[str, int], Record]:
    """Records of a run by (cell key, round); for a run distributed over nodes, only those of whole rounds.

    The other trials of a round may be on another node.
    """
    if run is None:
        return {}
    latest = run.latest()
    if not nodes_of(run.folder):
        return latest
    whole = {(record.cell, record.round) for record in whole_rounds(run, run.header.cells)}
    return {trial: record for trial, record in latest.items() if trial in whole or not record.outcome.timed}


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
        style=None if part.sweep.style == NO_STYLE else part.sweep.style,
    )


def _new_folder(request: Request) -> Path:
    """The folder of a new run; names derived from the time are made unique."""
    if request.run_name:
        return RUNS / request.run_name
    return free_folder(RUNS, f"{request.sweep.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")


def _resume(request: Request, cells: tuple[Cell, ...], machine: Environment, log: Log, *, here: bool) -> Run:
    folder = log.path.parent
    run = read_run(folder)
    require_same_cells(run, cells)
    _require_same_blocks(run.header.measure, request.measure)
    require_same_suite(run, request.suite)
    if nodes := nodes_of(folder):
        gather_left(log, nodes, trial_progress(cells))
        run = read_run(folder)
    if not request.resume_changed:
        _require_alike(run, machine, str(request.resume), here=here)
    say_damage(run.damage)
    return run


def _require_alike(run: Run, machine: Environment, name: str, *, here: bool) -> None:
    """Raises RequestError if the run was measured by other code, or by a machine other than the one `here`.

    If nothing is measured yet, the machine that planned the run must match; it may never measure a distributed run.
    """
    codes, machines = {run.header.code_id}, set[str]()
    if here:
        codes |= {fact.code_id for fact in run.measured()}
        machines = run.measured_on() or {run.header.env_id}
    for what, before, now in (("code", codes, machine.code_id), ("machine", machines, machine.env_id)):
        if others := sorted(before - {now}):
            raise RequestError(
                f"resume={name}: its {what} was {' and '.join(others)}, this is {what} {now}; "
                "start a new run, or mix them with resume_changed=true"
            )


def _restore(log: Log, run: Run, published: Iterable[Published]) -> None:
    """Rewrite published numbers that a damaged run has lost, since they are not measured again.

    The others stay as they were when the run was planned.
    """
    if (run.records or run.sample_results) and not run.damage:
        return
    known = {number.id for number in run.published}
    if lost := [number for number in published if number.id not in known]:
        log.append(*lost)
        say(f"published numbers whose lines were lost, written again: {len(lost)}")


def _require_same_blocks(then: MeasureSpec, now: MeasureSpec) -> None:
    """Raises RequestError if weights would be reloaded in the middle of blocks of the resumed run."""
    if then.block_rounds != now.block_rounds:
        raise RequestError(
            f"resume: weights were loaded anew every {then.block_rounds} rounds, now every {now.block_rounds}; "
            f"set measure.min_rounds={then.min_rounds} again, measure.max_rounds may differ"
        )


def require_same_cells(run: Run, cells: tuple[Cell, ...]) -> None:
    """Raises RequestError where a run planned other cells."""
    then, now = {cell.key for cell in run.header.cells}, {cell.key for cell in cells}
    if then != now:
        extra = ", ".join(sorted(cell.label for cell in cells if cell.key not in then)) or "none"
        raise RequestError(
            f"resume: {run.header.run} planned other cells ({len(then - now)} of its cells are not requested now; "
            f"new now: {extra}); repeat the command it was started with: {' '.join(run.header.command)}"
        )
