"""`trace`: what each role did in one step of a cell, as a picture and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ktbench.config import Request
    from ktbench.spec.record import Cell, Environment
    from ktbench.spec.timeline import Timeline

SUMMARY = "one untimed step of a cell: what overlapped, as a picture and a Chrome/Perfetto trace"
A_CELL_FAILED = 4


def run(overrides: Sequence[str]) -> int:
    """Trace the one cell that the overrides describe. Exit code 4 where it cannot run here or did not end well."""
    from ktbench.cli.progress import say
    from ktbench.cli.request import plan_request, read_request
    from ktbench.host.environment import environment
    from ktbench.spec.errors import RequestError

    request = read_request(overrides)
    if request.is_sweep:
        raise RequestError("trace: takes one cell; use `sweep` for lists and ablations")
    if (system := request.parts[0].spec.system) != "ktbench":
        say(f"trace: UNSUPPORTED: {system} does not say what its roles do")
        return A_CELL_FAILED
    planned = plan_request(request)
    folder, (cell,) = _folder(request), planned.cells
    if cell.key in planned.lacking:
        say(f"trace: UNSUPPORTED: {planned.lacking[cell.key]}")
        return A_CELL_FAILED
    machine = environment()
    timeline, why = (_simulated if cell.spec.machine else _traced)(cell, machine, folder)
    if timeline is None:
        say(f"trace: {why}")
        return A_CELL_FAILED
    for line in _written(timeline, cell, machine, folder):
        print(line)
    return 0


def _folder(request: Request) -> Path:
    from datetime import UTC, datetime

    from ktbench.results.find import RUNS
    from ktbench.spec.errors import RequestError

    if request.resume is not None:
        raise RequestError(f"trace: resume={request.resume}: a trace is made anew each time, leave it out")
    folder = RUNS / (request.run_name or f"trace-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if folder.exists():
        raise RequestError(f"run_name={folder.name}: {folder} is there already, choose another name")
    return folder


def _traced(cell: Cell, machine: Environment, folder: Path) -> tuple[Timeline | None, str]:
    """The timeline, or why there is none."""
    from uuid import uuid4

    from ktbench.cli.progress import loading
    from ktbench.engine.protocol import Unsupported
    from ktbench.host.timing_lock import timing
    from ktbench.run.commands import serve_command
    from ktbench.run.messages import Open
    from ktbench.run.worker import Worker, WorkerDied

    opened = Open(cells=(cell,), code_id=machine.code_id, env_id=machine.env_id, sitting=uuid4().hex[:8])
    log, limits = folder / "worker.log", cell.spec.measure
    worker = None
    try:
        with timing("trace", folder.name):
            folder.mkdir(parents=True)
            loading(cell)
            worker = Worker.start(opened, log, limits.load_timeout_s, serve_command(cell.spec))
            return worker.timeline(cell, limits.turn_timeout_s), ""
    except Unsupported as error:
        return None, f"UNSUPPORTED: {error}"
    except WorkerDied as died:
        return None, f"{died.outcome}: {died.why}"
    finally:
        if worker is not None:
            worker.stop()


def _simulated(cell: Cell, machine: Environment, folder: Path) -> tuple[Timeline | None, str]:
    """The timeline of a cell on its machine of paper, or why there is none."""
    from ktbench.sim.simulation import simulate

    try:
        timeline = simulate(cell.spec).timeline
    except ValueError as error:
        return None, f"UNSUPPORTED: {error}"
    folder.mkdir(parents=True)
    return timeline, ""


def _written(timeline: Timeline, cell: Cell, machine: Environment, folder: Path) -> Iterator[str]:
    """Writes the files; what there is to say about the step, then their names."""
    from ktbench.report.chrome_trace import chrome_trace
    from ktbench.report.figures.output import save
    from ktbench.report.figures.timeline import shares, timeline_figure

    conditions = _conditions(cell, machine)
    trace = folder / "trace.json"
    trace.write_text(chrome_trace(timeline), encoding="utf-8")
    yield from (*shares(timeline), *conditions[:2], "")
    for path in (trace, *save(timeline_figure(timeline, conditions), folder, "timeline")):
        yield f"wrote {path}"


def _conditions(cell: Cell, machine: Environment) -> tuple[str, ...]:
    """What was traced, on what, and the ids."""
    from ktbench.report.conditions import machine_sentence, simulated_on

    spec = cell.spec
    if spec.machine is not None:
        ids = f"Ids: code {machine.code_id}, spec {cell.spec_id}."
        return f"{cell.label}.", f"{simulated_on([spec.machine])}.", ids
    return (
        f"{spec.summary}, {cell.label}, roles {spec.engine.roles} on {spec.engine.device}.",
        machine_sentence(machine.facts),
        f"Ids: code {machine.code_id}, machine {machine.env_id}, spec {cell.spec_id}.",
    )
