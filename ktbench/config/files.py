"""YAML files that a request names, with errors in one line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ktbench.resources import read_text
from ktbench.spec.errors import instead
from ktbench.spec.yaml_text import MOST_BYTES, plain_yaml

USER_FILE = "own"  # the option that a file of the user's own is registered as


def read_yaml(file: str | Path, where: str, of: str) -> Any:
    """Content of a YAML file. Raises ValueError in one line that begins with `where`, see `plain_yaml`."""
    return plain_yaml(read_text(file, where, MOST_BYTES), where, of)


def check_keys(content: Any, allowed: Collection[str], needed: Collection[str], where: str) -> None:
    """Raises ValueError that begins with `where` for what is no mapping, and naming an unknown or a missing key."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping with the keys {', '.join(allowed)}")
    for key in content:
        if key not in allowed:
            raise ValueError(f"{where}: unknown key {key!r}{instead(key, allowed)}")
    if missing := [key for key in needed if key not in content]:
        raise ValueError(f"{where}: the key {missing[0]} is missing")
