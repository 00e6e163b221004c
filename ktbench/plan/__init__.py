"""What will be run, in which order, and whether it fits."""

from ktbench.plan.blocks import blocks_of
from ktbench.plan.cells import plan_cells, unsupported
from ktbench.plan.memory import MemoryEstimate, WeightsKey, estimate_memory, require_memory, worker_bytes
from ktbench.plan.schedule import turn_order, worker_groups

__all__ = [
    "MemoryEstimate",
    "WeightsKey",
    "blocks_of",
    "estimate_memory",
    "plan_cells",
    "require_memory",
    "turn_order",
    "unsupported",
    "worker_bytes",
    "worker_groups",
]
