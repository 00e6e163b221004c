"""The table of what spoils measurements: what is wrong, what that does, and how to mend it."""

from ktbench.core.health.check import Check, Facts, Warned, unknown, warnings
from ktbench.core.health.memory import MEMORY_CHECKS
from ktbench.core.health.processor import PROCESSOR_CHECKS
from ktbench.core.health.turn import TURN_CHECKS

MACHINE_CHECKS = (*PROCESSOR_CHECKS, *MEMORY_CHECKS)

__all__ = ["MACHINE_CHECKS", "TURN_CHECKS", "Check", "Facts", "Warned", "unknown", "warnings"]
