"""Carries out requests: feasibility, worker processes, sessions, sweeps, clusters, evaluations.

Once imported, the package hides the function `ktbench.run` of the Python API; calling the package calls that function.
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
