"""From the words of a command line to a frozen request and the cells it means on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.config import Request, compose, freeze
from ktbench.core.errors import RequestError
from ktbench.core.record import Cell
from ktbench.engine.checkpoint_files import inspect_checkpoint
from ktbench.engine.support import unsupported as not_built
from ktbench.host.grants import feature_reasons, machine_grants
from ktbench.host.memory import available_memory_bytes
from ktbench.plan import plan_cells, require_memory, unsupported


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Cells of a request. `lacking` says by cell key why this machine cannot run a cell; the others can be run."""

    cells: tuple[Cell, ...]
    lacking: dict[str, str]
    needed_bytes: int

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that this machine can run."""
        return tuple(cell for cell in self.cells if cell.key not in self.lacking)


def read_request(overrides: Sequence[str]) -> Request:
    """The frozen request behind overrides. Raises RequestError."""
    composed = compose(overrides)
    path = composed["model"]["path"]
    if path is None:
        return freeze(composed)
    try:
        return freeze(composed, inspect_checkpoint(path))
    except ValueError as error:
        raise RequestError(str(error)) from None


def plan_request(request: Request) -> Planned:
    """Cells of a request, sorted into what can run here and what cannot. Raises RequestError where it does not fit."""
    cells = plan_cells(request.spec, request.sweep)
    reasons = feature_reasons(machine_grants())
    lacking = {cell.key: why for cell in cells if (why := unsupported(cell.spec, reasons) or not_built(cell.spec))}
    runnable = [cell for cell in cells if cell.key not in lacking]
    needed = require_memory(runnable, available_memory_bytes()) if runnable else 0
    return Planned(cells=cells, lacking=lacking, needed_bytes=needed)
