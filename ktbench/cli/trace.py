"""`trace`: the timeline of each role in one step of a cell, as a picture and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ktbench.config import Request
from ktbench.files import write_whole
from ktbench.host.environment import environment
from ktbench.report.conditions import cell_headline, machine_sentence, simulated_on
from ktbench.report.exchange.chrome_trace import chrome_trace
from ktbench.results.find import RUNS
from ktbench.run.progress import warn
from ktbench.run.request import one_cell_request, plan_request
from ktbench.spec.engine import EngineSpec
from ktbench.spec.errors import FAILED, RequestError
from ktbench.spec.peers import OURS
from ktbench.spec.record import Cell, Environment
from ktbench.spec.timeline import Timeline

_TRACE, _PICTURE = "trace.json", "timeline"


def run(overrides: Sequence[str]) -> int:
    """Trace the one cell that the overrides describe. Exit code 4 where it cannot run here or did not end well."""
    from ktbench.run.timeline import timeline_of

    request = one_cell_request("trace", overrides)
    if (system := request.parts[0].spec.system) != OURS:
        warn(f"trace: UNSUPPORTED: {system} has no timeline, system=ktbench has one")
        return FAILED
    folder = _folder(request)
    planned = plan_request(request)
    (cell,) = planned.cells
    if cell.key in planned.unsupported:
        warn(f"trace: UNSUPPORTED: {planned.unsupported[cell.key]}")
        return FAILED
    machine = environment()
    timeline, why = timeline_of(cell, machine, folder)
    if timeline is None:
        warn(f"trace: {why}")
        return FAILED
    print("\n".join(_write(timeline, cell, machine, folder)))
    return 0


def _folder(request: Request) -> Path:
    if request.resume is not None:
        raise RequestError(f"trace: resume={request.resume}: a trace cannot be resumed, leave it out")
    folder = RUNS / (request.run_name or f"trace-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if folder.exists() and not _is_unfinished(folder):
        raise RequestError(f"run_name={folder.name}: {folder} exists, choose another name")
    return folder


def _is_unfinished(folder: Path) -> bool:
    """Whether a trace that did not come to its end has left the folder: the file that is written last is missing."""
    return folder.is_dir() and {path.stem for path in folder.glob("[!.]*")} <= {"worker", _PICTURE}


def _write(timeline: Timeline, cell: Cell, machine: Environment, folder: Path) -> Iterator[str]:
    """Write the files; lines on the step, then their names."""
    from ktbench.report.figures.output import save
    from ktbench.report.figures.timeline import shares, timeline_figure

    conditions = _conditions(cell, machine)
    headline = cell_headline(cell.label, cell.spec, machine.facts)
    pictures = save(timeline_figure(timeline, headline, conditions), folder, _PICTURE)
    trace = write_whole(folder / _TRACE, chrome_trace(timeline))
    yield from (*shares(timeline), *conditions[:2], "")
    for path in (trace, *pictures):
        yield f"wrote {path}"


def _roles(engine: EngineSpec) -> str:
    return "device role on the GPU" if engine.device == "cuda" else f"roles {engine.roles} on the CPU"


def _conditions(cell: Cell, machine: Environment) -> tuple[str, ...]:
    """The cell, the machine, and the ids."""
    spec = cell.spec
    if spec.machine is not None:
        ids = f"Ids: code {machine.code_id}, spec {cell.spec_id}."
        return f"{cell.label}.", f"{simulated_on([spec.machine])}.", ids
    return (
        f"{spec.summary}, {cell.label}, {_roles(spec.engine)}.",
        machine_sentence(machine.facts),
        f"Ids: code {machine.code_id}, machine {machine.env_id}, spec {cell.spec_id}.",
    )
