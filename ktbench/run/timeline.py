"""The timeline of one step of a cell: traced in a worker, or simulated."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from ktbench.engine.protocol import Unsupported
from ktbench.host.timing_lock import who_times
from ktbench.run.messages import OpenSession, RecordIds
from ktbench.run.progress import loading, warn
from ktbench.run.worker import Worker, WorkerDied, serve_command
from ktbench.sim import simulate
from ktbench.spec.record import Cell, Environment
from ktbench.spec.timeline import Timeline


def timeline_of(cell: Cell, machine: Environment, folder: Path) -> tuple[Timeline | None, str]:
    """The timeline of a cell and "", or None and the reason. Makes `folder`, which gets the worker's log."""
    return _simulate(cell, folder) if cell.spec.machine else _trace(cell, machine, folder)


def _trace(cell: Cell, machine: Environment, folder: Path) -> tuple[Timeline | None, str]:
    ids = RecordIds(code_id=machine.code_id, env_id=machine.env_id, worker_session=uuid4().hex[:8])
    limits, worker = cell.spec.measure, None
    try:
        if (holder := who_times()) is not None:
            warn(f"this host is timing: {holder}; loading and tracing a step may disturb it")
        folder.mkdir(parents=True, exist_ok=True)
        opened, command = OpenSession(cells=(cell,), ids=ids), serve_command(cell.spec)
        with loading(cell) as on_loading:
            worker = Worker.start(opened, folder / "worker.log", limits.load_timeout_s, command, on_loading)
        return worker.timeline(cell, limits.turn_timeout_s), ""
    except Unsupported as error:
        return None, f"UNSUPPORTED: {error}"
    except WorkerDied as died:
        return None, f"{died.outcome}: {died.why}"
    finally:
        if worker is not None:
            worker.stop()


def _simulate(cell: Cell, folder: Path) -> tuple[Timeline | None, str]:
    try:
        timeline = simulate(cell.spec).timeline
    except ValueError as error:
        return None, f"UNSUPPORTED: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    return timeline, ""
