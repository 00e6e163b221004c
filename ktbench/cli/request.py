"""From the words of a command line to a frozen request and the cells it means on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ktbench.config import Request, compose, freeze
from ktbench.core.errors import RequestError
from ktbench.core.peers import BY_NAME
from ktbench.core.record import Cell
from ktbench.core.spec import RunSpec
from ktbench.engine.checkpoint_files import inspect_checkpoint
from ktbench.engine.gguf.kept import no_file
from ktbench.engine.inject.match import require_operators
from ktbench.engine.placing import place_experts
from ktbench.engine.roles import lacking_cores
from ktbench.engine.support import unsupported as not_built
from ktbench.host.grants import feature_reasons, machine_grants
from ktbench.host.memory import available_memory_bytes
from ktbench.host.peers import peer_reason
from ktbench.host.topology import read_topology
from ktbench.peers.support import unsupported as peer_cannot
from ktbench.plan import blocks_of, plan_cells, require_memory, unsupported
from ktbench.workload.profile import read_profile
from ktbench.workload.recorded import read_trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Cells of a request. `lacking` says by cell key why this machine cannot run a cell; the others can be run.

    `needed_bytes` are held at once at most, of `free_bytes`; `cache_bytes` is the last-level cache, 0 if not known.
    """

    cells: tuple[Cell, ...]
    lacking: dict[str, str]
    needed_bytes: int
    free_bytes: int
    cache_bytes: int

    @property
    def blocks(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells that can run, in the blocks that take turns together: all, or as many as memory has room for."""
        return blocks_of(self.runnable, self.free_bytes, self.cache_bytes)

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that this machine can run."""
        return tuple(cell for cell in self.cells if cell.key not in self.lacking)


def read_request(overrides: Sequence[str]) -> Request:
    """The frozen request behind overrides. Raises RequestError."""
    composed = compose(overrides)
    paths = {content["model"]["path"] for content in composed.parts.values()} - {None}
    try:
        request = freeze(composed, {path: inspect_checkpoint(path) for path in paths})
        for part in request.parts:
            require_operators(part.spec.inject)
        return request
    except ValueError as error:
        raise RequestError(str(error)) from None


def plan_request(request: Request) -> Planned:
    """Cells of a request, sorted into what can run here and what cannot. Raises RequestError where it does not fit."""
    cells = tuple(cell for part in request.parts for cell in plan_cells(part.spec, part.sweep, part.name))
    grants = machine_grants()
    reasons = feature_reasons(grants)
    if grants["cuda"] and any(cell.spec.engine.device == "cuda" for cell in cells):
        raise RequestError(f"engine.device=cuda: {grants['cuda']}; allowed here: cpu")
    cpus = read_topology().core_cpus
    lacking = {cell.key: why for cell in cells if (why := _lacks(cell.spec, reasons, cpus))}
    runnable = [cell for cell in cells if cell.key not in lacking]
    for cell in cells:
        _check_placement(cell)
    for cell in runnable:
        _check_trace(cell)
    free, cache = available_memory_bytes(), read_topology().last_level_cache_bytes or 0
    needed = require_memory(runnable, free, cache)
    return Planned(cells=cells, lacking=lacking, needed_bytes=needed, free_bytes=free, cache_bytes=cache)


def _lacks(spec: RunSpec, reasons: Mapping[str, str], cpus: Sequence[int]) -> str:
    """Why a cell cannot run on this machine; empty where it can."""
    if spec.system != "ktbench":
        return peer_cannot(spec) or no_file(spec) or peer_reason(BY_NAME[spec.system], spec.peer)
    return unsupported(spec, reasons) or not_built(spec) or lacking_cores(cpus, spec.engine)


def _check_trace(cell: Cell) -> None:
    """Recorded routing that cannot be replayed is refused before anything loads."""
    work, shape = cell.spec.workload, cell.spec.model.shape
    try:
        if work.trace is not None:
            read_trace(work.trace, shape.experts, shape.top_k, work.seed)
    except ValueError as error:
        raise RequestError(str(error)) from None


def _check_placement(cell: Cell) -> None:
    """A profile that cannot be read, or is one of another model, is refused before anything loads."""
    placement, model = cell.spec.engine.placement, cell.spec.model
    try:
        profile = None if placement.profile is None else read_profile(placement.profile, model)
        place_experts(placement, model.shape, profile)
    except ValueError as error:
        raise RequestError(str(error)) from None
