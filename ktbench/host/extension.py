"""The kernel extension, which may not be built: absent is a reason, not a crash."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """The loaded `ktbench._kernels`, or the one-line reason why there is none."""

    module: ModuleType | None
    reason: str = ""


def load_extension() -> Extension:
    """Import the extension."""
    try:
        return Extension(module=importlib.import_module("ktbench._kernels"))
    except ImportError as error:
        first = str(error).splitlines()[0]
        return Extension(module=None, reason=f"the kernel extension is not built: run pip install -e . ({first})")


def isa_grants(extension: Extension) -> dict[str, str]:
    """Instruction set -> "" when this machine grants it, else the reason. Empty without the extension."""
    return {} if extension.module is None else dict(extension.module.grants())
