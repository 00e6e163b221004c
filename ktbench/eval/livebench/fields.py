"""Fields of a row of JSON, checked: what a question's file may get wrong is refused by the field's name."""

from __future__ import annotations

import json
from collections.abc import Mapping

Row = Mapping[str, object]


def read_object(line: bytes | str) -> Row:
    """The JSON object of a line. Raises ValueError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    return row


def text(row: Row, name: str) -> str:
    """A text; '' where it is absent or null. Raises ValueError."""
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}: must be a text, is {type(value).__name__}")
    return value or ""


def needed(row: Row, name: str) -> str:
    """A text that has to be there. Raises ValueError."""
    if not (value := text(row, name)):
        raise ValueError(f"{name}: is missing")
    return value


def number(row: Row, name: str) -> float | None:
    """A number; None where it is absent or null. Raises ValueError."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: must be a number, is {type(value).__name__}")
    return value


def listed(row: Row, name: str) -> list[object]:
    """A list; empty where it is absent or null. Raises ValueError."""
    value = row.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name}: must be a list, is {type(value).__name__}")
    return value or []
