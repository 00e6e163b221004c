"""ktbench: what each hybrid CPU/GPU optimisation of Mixture-of-Experts inference buys, measured."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktbench.api import RequestError, Result, evaluate, inject, load, run, simulate, sweep

__version__ = "0.1.0"
__all__ = ["RequestError", "Result", "evaluate", "inject", "load", "run", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    """The Python API, imported when it is first used: workers and `--help` do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ktbench.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
