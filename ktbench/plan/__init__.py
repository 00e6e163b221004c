"""What will be run, in which order, and whether it fits."""

from ktbench.plan.cells import plan_cells, unsupported
from ktbench.plan.memory import MemoryEstimate, estimate_memory, require_memory
from ktbench.plan.schedule import turn_order, worker_groups

__all__ = [
    "MemoryEstimate",
    "estimate_memory",
    "plan_cells",
    "require_memory",
    "turn_order",
    "unsupported",
    "worker_groups",
]
