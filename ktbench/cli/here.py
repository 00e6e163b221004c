"""Which measured cells this machine cannot run, and why; what makes a whole request impossible is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktbench.engine.gguf.export import no_file
from ktbench.engine.placement import place_experts
from ktbench.engine.roles import lacking_cores
from ktbench.engine.support import unsupported as not_built
from ktbench.engine.workload.recorded import read_profile, read_trace
from ktbench.host.capabilities import feature_reasons, machine_capabilities
from ktbench.host.software import peer_reason
from ktbench.host.topology import read_topology
from ktbench.peers.support import unsupported as peer_cannot
from ktbench.spec.cells import points_of, unsupported
from ktbench.spec.errors import RequestError
from ktbench.spec.memory import worker_bytes
from ktbench.spec.peers import BY_NAME
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec

_GIB = 2**30


def lacking_here(cells: Sequence[Cell], *, cuda_is_needed: bool) -> dict[str, str]:
    """Why this machine cannot run cells, by their keys; memory is another matter.

    Raises RequestError for a placement or a recorded routing that cannot be read, and where cells need CUDA and there
    is none: unless not `cuda_is_needed`, which makes that a reason like the others.
    """
    capabilities, cpus = machine_capabilities(), read_topology().core_cpus
    reasons = feature_reasons(capabilities)
    lacking: dict[str, str] = {}
    for cell in cells:
        if capabilities["cuda"] and cell.spec.engine.device == "cuda":
            if cuda_is_needed:
                raise RequestError(f"engine.device=cuda: {capabilities['cuda']}; allowed here: cpu")
            lacking[cell.key] = f"engine.device=cuda: {capabilities['cuda']}"
        elif why := _lacks(cell.spec, reasons, cpus):
            lacking[cell.key] = why
    for cell in cells:
        _check_placement(cell)
        if cell.key not in lacking:
            _check_trace(cell)
    return lacking


def lacking_room(cells: Sequence[Cell], free_bytes: int, cache_bytes: int) -> dict[str, str]:
    """Why cells do not fit in memory with those that they are compared with, by their keys."""
    sizes = worker_bytes(cells, cache_bytes)
    lacking: dict[str, str] = {}
    for point in points_of(cells):
        needed = sum(sizes[key] for key in {cell.spec.weights_key for cell in point})
        if needed > free_bytes:
            why = f"needs {gib(needed)}, {gib(free_bytes)} are free"
            lacking |= dict.fromkeys((cell.key for cell in point), why)
    return lacking


def gib(nbytes: float) -> str:
    """`1,345 GiB`, `22.4 GiB`."""
    return f"{nbytes / _GIB:,.{0 if nbytes >= 100 * _GIB else 1}f} GiB"


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
