"""What a session needs of whoever watches the machine during its turns."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ktbench.spec.system_metrics import SystemMetrics


class Watch(Protocol):
    """Watches the machine: `ktbench.host.watch.MachineWatch` or a test's stand-in."""

    def turn(self) -> None:
        """A turn begins."""

    def steps(self) -> AbstractContextManager[None]:
        """The timed steps are inside; nothing is read between entering and leaving."""

    def conduct(self) -> SystemMetrics | None:
        """What was seen since `turn`; None where nobody looked."""


class Unwatched:
    """Nobody looks."""

    def turn(self) -> None:
        """See `Watch`."""

    def steps(self) -> AbstractContextManager[None]:
        """See `Watch`."""
        return nullcontext()

    def conduct(self) -> SystemMetrics | None:
        """See `Watch`."""
        return None
