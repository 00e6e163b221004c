"""The scripts of the workloads that were used last."""

from __future__ import annotations

from collections.abc import Callable

from ktbench.engine.script import Script
from ktbench.spec.run_spec import WorkloadSpec

# Each holds the cache that its prompt left.
_MOST = 4


class Scripts:
    """Written once: the prompt of a deep context takes longer than all steps after it."""

    def __init__(self) -> None:
        self._kept: dict[WorkloadSpec, Script] = {}  # last used last

    def of(self, workload: WorkloadSpec, write: Callable[[], Script]) -> Script:
        """The script of a workload, written where it is not kept; the one used longest ago makes room."""
        script = self._kept.pop(workload, None) or write()
        self._kept[workload] = script
        if len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]
        return script
