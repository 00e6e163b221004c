"""The append-only log of a run and what can be asked of it, and the published numbers that ship."""

from ktbench.store.log import LOG_NAME, Log, StoreError
from ktbench.store.published import published_names, published_of, read_published
from ktbench.store.run import Run, read_run

__all__ = ["LOG_NAME", "Log", "Run", "StoreError", "published_names", "published_of", "read_published", "read_run"]
