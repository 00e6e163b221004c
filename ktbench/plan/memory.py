"""Bytes that the workers of a plan will hold at once, estimated before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ktbench.core.errors import RequestError
from ktbench.core.record import Cell
from ktbench.core.spec import RunSpec
from ktbench.plan.schedule import worker_groups

_GIB = 2**30
_BF16_BYTES = 2
# Interpreter, PyTorch and Transformers once imported (resident set of an idle worker), and the buffer of the read roof.
_PROCESS_BYTES = int(0.6 * _GIB)
_ROOF_BYTES = _GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one worker by purpose. `original` are expert weights as checkpoints hold them, `packed` our tiles."""

    original: int
    packed: int
    others: int
    workspace: int
    fixed: int

    @property
    def total(self) -> int:
        """Bytes of the worker."""
        return self.original + self.packed + self.others + self.workspace + self.fixed


def estimate_memory(cells: Sequence[Cell]) -> MemoryEstimate:
    """Estimate for the cells of one worker, which share their weights."""
    specs = [cell.spec for cell in cells]
    shape = specs[0].model.shape
    routed = shape.routed_params * _BF16_BYTES
    return MemoryEstimate(
        original=routed if any(needs_original(spec) for spec in specs) else 0,
        packed=routed if any(needs_packed(spec) for spec in specs) else 0,
        others=shape.other_params * _BF16_BYTES,
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


def require_memory(cells: Sequence[Cell], free_bytes: int) -> int:
    """Bytes of all workers of a plan together.

    Raises RequestError naming needed and free bytes where they do not fit.
    """
    needed = sum(estimate_memory(group).total for group in worker_groups(cells))
    if needed > free_bytes:
        model = cells[0].spec.model
        raise RequestError(
            f"{model.name} with {model.shape.layers} layers needs {needed / _GIB:.1f} GiB ({needed:,} bytes), "
            f"free are {free_bytes / _GIB:.1f} GiB ({free_bytes:,} bytes){_hint(cells, needed - free_bytes)}"
        )
    return needed


def _hint(cells: Sequence[Cell], excess: int) -> str:
    """How many layers of a slice would fit, where leaving layers out is the remedy."""
    model, need = cells[0].spec.model, estimate_memory(cells)
    if model.path is not None:
        return ""
    layer_bytes = (need.original + need.packed) // model.shape.moe_layers
    fitting = model.shape.layers - ceil(excess / layer_bytes)
    if fitting <= model.shape.dense_layers:
        return "; not even one MoE layer fits"
    return f"; model.layers={fitting} would fit"
