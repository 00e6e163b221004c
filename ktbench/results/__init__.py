"""The append-only log of a run and what follows from it: rows, statistics, comparison, attribution, stopping."""

from ktbench.results.lines import Damage, StoreError
from ktbench.results.log import LOG_NAME, Log, NotKept, free_folder
from ktbench.results.published import published_names, published_of, read_published
from ktbench.results.run import NoPlan, Run, read_run

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
