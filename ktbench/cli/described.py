"""Which simulated cells the machine that they describe could not run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ktbench.cli.here import gib
from ktbench.engine.roles import lacking_cores
from ktbench.engine.support import unsupported as not_built
from ktbench.spec.cells import unsupported
from ktbench.spec.features import FEATURES
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import dense_bytes, expert_bytes

_GIB = 2**30
_BF16_BYTES = 2


def lacking_there(cells: Iterable[Cell]) -> dict[str, str]:
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
