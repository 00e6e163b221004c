"""Instructions about how long an answer is: sentences, paragraphs, words."""

from __future__ import annotations

import re
from itertools import takewhile

from ktbench.eval.livebench.instructions.sentences import count_sentences

_WORD = re.compile(r"\w+")
_DIVIDER = re.compile(r"\s?\*\*\*\s?")


def holds(relation: str, count: int, threshold: int) -> bool:
    """Whether a count is `less than` or `at least` the threshold."""
    return count < threshold if relation == "less than" else count >= threshold


def number_sentences(answer: str, threshold: int, relation: str) -> bool:
    """Sentences as `count_sentences` finds them."""
    return holds(relation, count_sentences(answer), threshold)


def number_words(answer: str, threshold: int, relation: str) -> bool:
    r"""Words are runs of `\w`, as in nltk's RegexpTokenizer of that pattern: `don't` is two."""
    return holds(relation, len(_WORD.findall(answer)), threshold)


def number_paragraphs(answer: str, number: int) -> bool:
    """Exactly so many paragraphs, divided by `***`; none but what lies outside the outermost dividers is blank."""
    first, *others = _DIVIDER.split(answer)
    if not others:
        return number == 1
    *inner, last = others
    if not all(paragraph.strip() for paragraph in inner):
        return False
    return number == len(inner) + bool(first.strip()) + bool(last.strip())


def nth_paragraph_first_word(answer: str, number: int, nth: int, first_word: str) -> bool:
    """Exactly `number` paragraphs, divided by an empty line; the nth begins with the word, whatever its case.

    Blank paragraphs do not count, but keep their places when the nth is looked up.
    """
    paragraphs = answer.split("\n\n")
    filled = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if filled != number or nth > filled:
        return False
    return _first_word(paragraphs[nth - 1]) == first_word.lower()


def _first_word(paragraph: str) -> str:
    """In lower case, up to its first punctuation; quotation marks before it are dropped."""
    word = next(iter(paragraph.split()), "").lstrip("'").lstrip('"')
    return "".join(takewhile(lambda sign: sign not in ".,?!'\"", word)).lower()
