"""The append-only log of a run and what can be asked of it."""

from ktbench.store.log import LOG_NAME, Log, StoreError
from ktbench.store.run import Run, read_run

__all__ = ["LOG_NAME", "Log", "Run", "StoreError", "read_run"]
