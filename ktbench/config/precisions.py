"""The precisions of a command line by their names in specs."""

from __future__ import annotations

from typing import Any

PRECISION_KEYS = ("precision", "device_precision")
_SHORT = {"int4": "int4_g32"}


def precision_name(word: Any) -> Any:
    """A precision by its name in specs: `int4` is that of the smallest groups. Anything else as it is."""
    return _SHORT.get(word, word) if isinstance(word, str) else word
