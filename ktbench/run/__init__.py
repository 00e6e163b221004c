"""Carries requests out: feasibility, worker processes, sessions, sweeps, clusters, evaluations.

Once imported, the package is what `ktbench.run` names: called, it is the function `run` of the Python API.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *words: str, **keys: Any) -> Any:
        """`ktbench.api.run`."""
        return import_module("ktbench.api").run(*words, **keys)


sys.modules[__name__].__class__ = _CallablePackage
