"""Tasks to be asked: where their questions come from, and lm-eval's tasks made of them."""

from ktbench.eval.tasks.inspecting import inspect
from ktbench.eval.tasks.loaded import LoadedTask
from ktbench.eval.tasks.sources import SOURCES, load_task, needs_decode

__all__ = ["SOURCES", "LoadedTask", "inspect", "load_task", "needs_decode"]
