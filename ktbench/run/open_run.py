"""Opens the folder of a run: a new one with its plan, or one to go on with, as far as it can be gone on with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from ktbench.config import Request, RequestPart
from ktbench.results import Log, Run, free_folder, published_of, read_run
from ktbench.results.find import RUNS, find_run, note_latest
from ktbench.run.evaluation import require_same_suite
from ktbench.run.progress import say, turns_ended
from ktbench.run.shards import end_nodes, gather_left, nodes_of, say_damage, whole_rounds
from ktbench.spec.errors import RequestError
from ktbench.spec.published import Published
from ktbench.spec.record import Cell, Environment, Header, Part, Record


def open_run(
    request: Request, cells: tuple[Cell, ...], machine: Environment, command: list[str], *, here: bool
) -> tuple[Log, Run | None]:
    """The log to write, with its plan, and the run to go on with, which is read once nobody else can add to it.

    What nodes have left of that is gathered first. It is gone on with under the same code and, where it is measured
    `here`, on the same machine. Raises RequestError, and NotKept where the disk takes no more.
    """
    published = published_of(parts_of(request))
    log = Log(find_run(request.resume) if request.resume else _new_folder(request), new=request.resume is None)
    try:
        if request.resume is None:
            previous = None
            log.append(header_of(request, cells, machine, log.path.parent.name, command), *published)
        else:
            previous = _resumed(request, cells, machine, log, here=here)
            _restore(log, previous, published)
    except BaseException:
        log.close()
        raise
    note_latest(log.path.parent)
    return log, previous


def end_shards(name: str, cells: tuple[Cell, ...]) -> None:
    """Have nodes that still work on the run `name` end: one of them may hold the lock on timing of this host.

    Raises RequestError where one does, and where the run planned other cells or is being written.
    """
    log = Log(find_run(name))
    try:
        _require_same_cells(read_run(log.path.parent), cells)
        end_nodes(nodes_of(log.path.parent))
    finally:
        log.close()


def kept_of(run: Run | None) -> Mapping[tuple[str, int], Record]:
    """What a run has of its plan by (cell key, round); of one that was spread, turns of whole rounds alone.

    The other turns of a round may be another node's.
    """
    if run is None:
        return {}
    latest = run.latest()
    if not nodes_of(run.folder):
        return latest
    whole = {(record.cell, record.round) for record in whole_rounds(run, run.header.cells)}
    return {turn: record for turn, record in latest.items() if turn in whole or not record.outcome.timed}


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


def _new_folder(request: Request) -> Path:
    """A name made of the time is free for one sweep: another may begin in the same second, or the clock be set back."""
    if request.run_name:
        return RUNS / request.run_name
    return free_folder(RUNS, f"{request.sweep.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")


def _resumed(request: Request, cells: tuple[Cell, ...], machine: Environment, log: Log, *, here: bool) -> Run:
    folder = log.path.parent
    run = read_run(folder)
    _require_same_cells(run, cells)
    require_same_suite(run, request.suite)
    if nodes := nodes_of(folder):
        gather_left(log, nodes, turns_ended(cells))
        run = read_run(folder)
    if not request.resume_changed:
        _require_alike(run, machine, str(request.resume), here=here)
    say_damage(run.damage)
    return run


def _require_alike(run: Run, machine: Environment, name: str, *, here: bool) -> None:
    """Raises RequestError where other code, or another machine than the one `here`, has measured what counts.

    The machine that planned a run is asked for where nothing is measured yet: of a spread run it may never measure.
    """
    codes, machines = {run.header.code_id}, set[str]()
    if here:
        codes |= {fact.code_id for fact in run.measured()}
        machines = run.measured_on() or {run.header.env_id}
    for what, before, now in (("code", codes, machine.code_id), ("machine", machines, machine.env_id)):
        if others := sorted(before - {now}):
            raise RequestError(
                f"resume={name}: its {what} was {' and '.join(others)}, this is {what} {now}; "
                "start a new run, or mix them knowingly with resume_changed=true"
            )


def _restore(log: Log, run: Run, published: Iterable[Published]) -> None:
    """Published numbers that a run has lost are written once more: nobody measures them again.

    What was not lost is as it was when the run was planned; others may have been published since.
    """
    if (run.records or run.sample_results) and not run.damage:
        return
    known = {number.id for number in run.published}
    if lost := [number for number in published if number.id not in known]:
        log.append(*lost)
        say(f"published numbers whose lines are lost, now written once more: {len(lost)}")


def _require_same_cells(run: Run, cells: tuple[Cell, ...]) -> None:
    then, now = {cell.key for cell in run.header.cells}, {cell.key for cell in cells}
    if then != now:
        extra = ", ".join(sorted(cell.label for cell in cells if cell.key not in then)) or "none"
        raise RequestError(
            f"resume: {run.header.run} planned other cells ({len(then - now)} of its cells are not asked for now; "
            f"new now: {extra}); repeat the command it was started with: {' '.join(run.header.command)}"
        )
