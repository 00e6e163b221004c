"""YAML files that a request names, with errors in one line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ktbench.spec.errors import did_you_mean

# Raised by PyYAML for a scalar that does not match its tag, by OmegaConf for a document that is a number.
_PARSE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_text(file: Any, where: str) -> str:
    """Text of a file. Raises ValueError in one line that begins with `where`."""
    try:
        return Path(str(file)).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{where}: is not UTF-8 text") from None


def parse_yaml(text: str, where: str, of: str) -> Any:
    """Content of YAML; a key that is there twice is refused. Raises ValueError that begins with `where`."""
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ValueError(f"{where}: is not YAML of {of}: {' '.join(str(error).split())}") from None
    except _PARSE_ERRORS as error:
        raise ValueError(f"{where}: is not YAML of {of} ({type(error).__name__})") from None


def check_keys(content: Any, allowed: Collection[str], needed: Collection[str], where: str) -> None:
    """Raises ValueError that begins with `where` for what is no mapping, and naming an unknown or a missing key."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping with the keys {', '.join(allowed)}")
    for key in content:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
            raise ValueError(f"{where}: unknown key {key!r}{hint}; allowed are {', '.join(allowed)}")
    if missing := [key for key in needed if key not in content]:
        raise ValueError(f"{where}: the key {missing[0]} is missing")
