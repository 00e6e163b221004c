"""Bytes that the workers of a plan will hold, estimated before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from ktbench.core.errors import RequestError
from ktbench.core.record import Cell
from ktbench.core.rotation import layer_copies
from ktbench.core.spec import Precision, RunSpec
from ktbench.core.weights import dense_bytes, expert_bytes
from ktbench.plan.schedule import worker_groups

_GIB = 2**30
_BF16_BYTES = 2
# Interpreter, PyTorch and Transformers once imported (resident set of an idle worker), and the buffer of the read roof.
_PROCESS_BYTES = int(0.6 * _GIB)
_ROOF_BYTES = _GIB

WeightsKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one worker by purpose. `original` are expert weights as checkpoints hold them, `packed` our tiles.

    `dense` are packed linear layers, which come on top of the `others` that they are packed from.
    """

    original: int
    packed: int
    others: int
    dense: int
    workspace: int
    fixed: int

    @property
    def total(self) -> int:
        """Bytes of the worker."""
        return self.original + self.packed + self.others + self.dense + self.workspace + self.fixed


def estimate_memory(cells: Sequence[Cell], cache_bytes: int) -> MemoryEstimate:
    """Estimate for the cells of one worker, which share their weights. `cache_bytes` is the last-level cache.

    In the layer phase a worker holds one layer, in as many copies as it takes to read past the cache.
    """
    specs = [cell.spec for cell in cells]
    shape, is_layer = specs[0].model.shape, specs[0].workload.phase == "layer"

    def experts(precision: Precision) -> int:
        layer_bytes = shape.experts * expert_bytes(shape, precision)
        return layer_bytes * (layer_copies(layer_bytes, cache_bytes) if is_layer else shape.moe_layers)

    return MemoryEstimate(
        original=experts("bf16") if any(needs_original(spec) for spec in specs) else 0,
        packed=experts(specs[0].precision) if any(needs_packed(spec) for spec in specs) else 0,
        others=0 if is_layer else shape.other_params * _BF16_BYTES,
        dense=dense_bytes(shape, specs[0].device_precision) if any(spec.engine.l for spec in specs) else 0,
        workspace=max(_workspace(spec) for spec in specs),
        fixed=_PROCESS_BYTES + _ROOF_BYTES,
    )


def needs_original(spec: RunSpec) -> bool:
    """Whether a cell runs the experts through PyTorch on weights as checkpoints hold them."""
    return not needs_packed(spec)


def needs_packed(spec: RunSpec) -> bool:
    """Whether a cell runs the fused operator on packed weights."""
    return spec.engine.fused


def _workspace(spec: RunSpec) -> int:
    """Activations of one step: for each of the k experts of a token its input, gate, up and output in float32."""
    shape = spec.model.shape
    tokens = spec.workload.batch * spec.workload.prompt
    return 4 * tokens * shape.top_k * (2 * shape.hidden + 3 * shape.expert_ffn)


def worker_bytes(cells: Sequence[Cell], cache_bytes: int) -> dict[WeightsKey, int]:
    """Bytes of every worker of a plan by the weights it holds."""
    return {group[0].spec.weights_key: estimate_memory(group, cache_bytes).total for group in worker_groups(cells)}


def require_memory(cells: Sequence[Cell], free_bytes: int, cache_bytes: int) -> int:
    """Bytes that are held at once at most: of all workers, or of as many as there is room for.

    The workers of one part stay together, since its cells take turns; those of other parts may have to make room.
    Raises RequestError naming needed and free bytes where the workers of one part do not fit.
    """
    for part in dict.fromkeys(cell.part for cell in cells):
        groups = [group for group in worker_groups(cells) if any(cell.part == part for cell in group)]
        needed = sum(estimate_memory(group, cache_bytes).total for group in groups)
        if needed > free_bytes:
            raise RequestError(
                f"{f'{part}: ' if part else ''}{_model(groups[0][0].spec)} needs {needed / _GIB:.1f} GiB "
                f"({needed:,} bytes), free are {free_bytes / _GIB:.1f} GiB ({free_bytes:,} bytes)"
                f"{_hint(groups, needed - free_bytes, cache_bytes)}"
            )
    return min(sum(worker_bytes(cells, cache_bytes).values()), free_bytes)


def _model(spec: RunSpec) -> str:
    layers = "one layer" if spec.workload.phase == "layer" else f"{spec.model.shape.layers} layers"
    return f"{spec.model.name} with {layers}"


def _hint(groups: Sequence[Sequence[Cell]], excess: int, cache_bytes: int) -> str:
    """What leaving layers or experts out would do, where that is the remedy."""
    spec = groups[0][0].spec
    model, shape = spec.model, spec.model.shape
    needs = [estimate_memory(group, cache_bytes) for group in groups]
    if model.path is not None:
        return ""
    if spec.workload.phase == "layer":
        return "; build fewer with model.experts=N"
    layer_bytes = sum(need.original + need.packed for need in needs) // shape.moe_layers
    fitting = shape.layers - ceil(excess / layer_bytes)
    if fitting <= shape.dense_layers:
        return "; not even one MoE layer fits"
    return f"; model.layers={fitting} would fit"
