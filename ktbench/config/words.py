"""Words of a command line from Python values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ktbench.spec.errors import RequestError

# Texts that Hydra reads as they stand: names, paths and labels such as +v+d, but neither numbers nor its own words.
_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf|[+-]?[\d.]))[\w.+/-][\w.+/:-]*", re.ASCII | re.IGNORECASE)


def words_of(keys: Mapping[str, Any]) -> list[str]:
    """The words `KEY=VALUE` that set keys to Python values.

    A mapping sets the keys below its own, a tuple is a comma list (values to sweep over), a list is one value. Raises
    RequestError for a value that has no word.
    """
    return [word for key, value in keys.items() for word in _words(key, value)]


def _words(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _words(f"{key}.{name}", one)
    elif isinstance(value, tuple):
        yield f"{key}={','.join(_text(key, one) for one in value)}"
    else:
        yield f"{key}={_text(key, value)}"


def _text(key: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(_text(key, one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}: {_text(key, one)}' for name, one in value.items())}}}"
    if hasattr(value, "__fspath__"):
        value = str(value)
    if not isinstance(value, str):
        kinds = "None, bool, int, float, str, paths, lists, tuples and mappings of them"
        raise RequestError(f"{key}: {type(value).__name__} is no value of a key; allowed are {kinds}")
    return value if _PLAIN.fullmatch(value) else quoted(value)


def quoted(text: str) -> str:
    """A text in quotes as Hydra reads it back: backslashes count only before a quote, the last one included."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    closed = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{closed}'"
