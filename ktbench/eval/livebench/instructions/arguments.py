"""What the arguments of instructions may be. Their names are those of IFEval's rows, `section_spliter` included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ktbench.eval.livebench.instructions.languages import ASKED

RELATIONS = ("less than", "at least")


@dataclass(frozen=True, slots=True)
class _Kind:
    allowed: str
    fits: Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_text, value))


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_COUNT = _Kind("a whole number, 0 or above", lambda value: _is_number(value, 0))
_RANK = _Kind("a whole number, 1 or above", lambda value: _is_number(value, 1))
_RELATION = _Kind(" or ".join(map(repr, RELATIONS)), lambda value: value in RELATIONS)
_LETTER = _Kind("one character", lambda value: isinstance(value, str) and len(value.strip()) == 1)
_LANGUAGE = _Kind(f"one of {', '.join(ASKED)}", lambda value: value in ASKED)
_TEXT = _Kind("text that is not blank", _is_text)
_TEXTS = _Kind("a list of words", _is_texts)

_KINDS = {
    "num_sentences": _COUNT,
    "num_paragraphs": _COUNT,
    "num_words": _COUNT,
    "nth_paragraph": _RANK,
    "first_word": _TEXT,
    "relation": _RELATION,
    "num_placeholders": _COUNT,
    "postscript_marker": _TEXT,
    "num_bullets": _COUNT,
    "num_highlights": _COUNT,
    "section_spliter": _TEXT,
    "num_sections": _COUNT,
    "keywords": _TEXTS,
    "keyword": _TEXT,
    "frequency": _COUNT,
    "forbidden_words": _TEXTS,
    "letter": _LETTER,
    "let_frequency": _COUNT,
    "let_relation": _RELATION,
    "capital_frequency": _COUNT,
    "capital_relation": _RELATION,
    "language": _LANGUAGE,
    "prompt_to_repeat": _TEXT,
    "end_phrase": _TEXT,
}


def values(instruction: str, names: Sequence[str], given: Mapping[str, object]) -> tuple[object, ...]:
    """The arguments of these names, in their order. Raises ValueError for what is missing, malformed or too many."""
    present = {name: value for name, value in given.items() if value is not None}
    if extra := sorted(present.keys() - set(names)):
        raise ValueError(f"{instruction}: takes no {extra[0]}; allowed are {', '.join(names) or 'no arguments'}")
    return tuple(_value(instruction, name, present) for name in names)


def _value(instruction: str, name: str, present: Mapping[str, object]) -> object:
    kind = _KINDS[name]
    if name not in present:
        raise ValueError(f"{instruction}: {name} is missing; it must be {kind.allowed}")
    if not kind.fits(present[name]):
        raise ValueError(f"{instruction}: {name}={present[name]!r} must be {kind.allowed}")
    return present[name]
