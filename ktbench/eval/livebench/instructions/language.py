"""Instructions about the language that an answer is in."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from ktbench.eval.livebench.instructions.languages import language_of


def is_in(answer: str, language: str) -> bool:
    """The answer is in the language (an ISO 639-1 code), or in none that can be told, as in IFEval."""
    return detect(answer) in (None, language)


def is_english_capital(answer: str) -> bool:
    """In English, all in capital letters."""
    return answer.isupper() and is_in(answer, "en")


def is_english_lowercase(answer: str) -> bool:
    """In English, all in small letters."""
    return answer.islower() and is_in(answer, "en")


def detect(text: str) -> str | None:
    """The ISO 639-1 code of a text's language, None where it cannot be told.

    By langdetect, as in IFEval, where it is installed, else by `language_of`, which may differ on short or mixed texts:
    `detector` says by which.
    """
    langdetect = _langdetect()
    if langdetect is None:
        return language_of(text)
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def detector() -> str:
    """What tells languages here, to be stated beside scores that depend on it."""
    return f"langdetect {version('langdetect')}" if _langdetect() else "scripts and function words"


@cache
def _langdetect() -> Any:
    """The module, None where it is not installed. Its guesses would change from call to call without a seed."""
    if find_spec("langdetect") is None:
        return None
    module = importlib.import_module("langdetect")
    module.DetectorFactory.seed = 0
    return module
