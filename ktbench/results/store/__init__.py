"""The append-only log of a run and what can be asked of it, and the published numbers that ship."""

from ktbench.results.store.lines import Damage, StoreError
from ktbench.results.store.log import LOG_NAME, Log, NotKept, free_folder
from ktbench.results.store.published import published_names, published_of, read_published
from ktbench.results.store.run import NoPlan, Run, read_run

__all__ = [
    "LOG_NAME",
    "Damage",
    "Log",
    "NoPlan",
    "NotKept",
    "Run",
    "StoreError",
    "free_folder",
    "published_names",
    "published_of",
    "read_published",
    "read_run",
]
