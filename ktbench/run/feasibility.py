"""Which simulated cells the machine that they describe could not run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ktbench.engine.gguf.export import no_file
from ktbench.engine.placing import place_experts
from ktbench.engine.roles import lacking_cores
from ktbench.engine.support import unsupported as not_built
from ktbench.engine.workload.recorded import read_profile, read_trace
from ktbench.host.grants import feature_reasons, machine_grants
from ktbench.host.peers import peer_reason
from ktbench.host.topology import read_topology
from ktbench.peers.support import unsupported as peer_cannot
from ktbench.spec.cells import unsupported
from ktbench.spec.errors import RequestError
from ktbench.spec.features import FEATURES
from ktbench.spec.machine import MachineSpec
from ktbench.spec.memory import worker_bytes
from ktbench.spec.peers import BY_NAME
from ktbench.spec.points import points_of
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes

_GIB = 2**30


def unsupported_locally(cells: Sequence[Cell], *, cuda_is_needed: bool) -> dict[str, str]:
    """Why this machine cannot run cells, by their keys; memory is another matter.

    Raises RequestError for a placement or a recorded routing that cannot be read, and where cells need CUDA and there
    is none: unless not `cuda_is_needed`, which makes that a reason like the others.
    """
    grants, cpus = machine_grants(), read_topology().core_cpus
    reasons = feature_reasons(grants)
    lacking: dict[str, str] = {}
    for cell in cells:
        if grants["cuda"] and cell.spec.engine.device == "cuda":
            if cuda_is_needed:
                raise RequestError(f"engine.device=cuda: {grants['cuda']}; allowed here: cpu")
            lacking[cell.key] = f"engine.device=cuda: {grants['cuda']}"
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


_BF16_BYTES = 2


def unsupported_simulated(cells: Iterable[Cell]) -> dict[str, str]:
    """Why cells could not run on the machines that they are simulated on, by their keys.

    Nothing is held against this machine; cells that are to be measured on it are passed over.
    """
    found = {cell.key: next(_reasons(cell.spec, cell.spec.machine), "") for cell in cells if cell.spec.machine}
    return {key: why for key, why in found.items() if why}


def _reasons(spec: RunSpec, machine: MachineSpec) -> Iterator[str]:
    if spec.system != "ktbench":
        yield f"{spec.system} is not simulated; its published numbers are shown where there are any"
    cores = range(machine.domains * machine.cores)
    if spec.engine.device == "cuda" and machine.gpu is None:
        yield f"engine.device=cuda: {machine.name} has no GPU"
    if spec.engine.device == "cpu" and machine.gpu is not None and spec.workload.phase != "layer":
        yield f"engine.device=cpu: {machine.name} is simulated with its GPU, leave engine.device out"
    if lacking := unsupported(spec, {feature.name: "" for feature in FEATURES} | machine.feature_reasons):
        yield lacking
    if why := not_built(_as_simulated(spec)) or lacking_cores(cores, spec.engine):
        yield why
    yield from _memory_reasons(spec, machine)


def _as_simulated(spec: RunSpec) -> RunSpec:
    """Without +c in prefill: our engine has no graph there, but the paper's breakdown has the row (Fig. 14).

    The experts of a layer alone are the host's, whether the machine has a GPU or not.
    """
    if spec.workload.phase == "layer":
        return replace(spec, engine=replace(spec.engine, device="cpu"))
    if spec.workload.phase == "prefill" and spec.engine.cuda_graph:
        return replace(spec, engine=replace(spec.engine, cuda_graph=False))
    return spec


def _memory_reasons(spec: RunSpec, machine: MachineSpec) -> Iterator[str]:
    """Weights alone: what they are held in besides is small against the memory of such machines."""
    at_device, device = spec.engine.placement.ratio * _routed_bytes(spec), _device_bytes(spec)
    on_gpu = spec.engine.device == "cuda"
    host = _routed_bytes(spec) - (at_device if on_gpu else -device)
    there = machine.domains * machine.memory_gib * _GIB
    if host > there:
        yield f"its weights take {gib(host)}, {machine.name} has {gib(there)} of memory"
    on_gpus = (machine.gpus or 0) * (machine.gpu_memory_gib or 0) * _GIB
    if on_gpu and at_device + device > on_gpus:
        yield (
            f"the weights of the device role take {gib(at_device + device)} in {spec.device_precision}, "
            f"{machine.name} has {gib(on_gpus)} of GPU memory"
        )


def _routed_bytes(spec: RunSpec) -> int:
    shape, layers = spec.model.shape, 1 if spec.workload.phase == "layer" else spec.model.shape.moe_layers
    return layers * shape.experts * expert_bytes(shape, spec.precision if spec.engine.fused else "bf16")


def _device_bytes(spec: RunSpec) -> int:
    """All but the routed experts, the embedding in bf16; of a layer alone nothing."""
    shape = spec.model.shape
    if spec.workload.phase == "layer":
        return 0
    table = 0 if shape.tied_head else shape.vocab * shape.hidden * _BF16_BYTES
    return dense_bytes(shape, spec.device_precision) + table
