"""The table of what spoils measurements: what is wrong, what that does, and how to mend it."""

from ktbench.spec.health.check import Check, Facts, Warned, unknown, warnings
from ktbench.spec.health.memory import MEMORY_CHECKS
from ktbench.spec.health.processor import PROCESSOR_CHECKS
from ktbench.spec.health.turn import TURN_CHECKS

MACHINE_CHECKS = (*PROCESSOR_CHECKS, *MEMORY_CHECKS)

__all__ = ["MACHINE_CHECKS", "TURN_CHECKS", "Check", "Facts", "Warned", "unknown", "warnings"]
