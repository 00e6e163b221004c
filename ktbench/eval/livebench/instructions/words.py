"""Instructions about which words, letters and signs an answer has."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ktbench.eval.livebench.instructions.length import holds

# Where nltk's word_tokenize ends a token, clitics aside; an inner full stop or hyphen does not end one.
_OPENING_APOSTROPHE = r"(?<!\w)'(?!(?:re|ve|ll|[mtsdn])\b)(?=\w)"
_BETWEEN_TOKENS = re.compile(
    r'[\s\[\](){}<>;@#$%&?!*"`«»“”„‘’‒–—―]+|--+|\.{2,}|[:,](?!\d)|' + _OPENING_APOSTROPHE, re.IGNORECASE
)
_CLITIC = re.compile(r"(?<=[^'])('[SMD]|'LL|'RE|'VE|N'T)$")
_IN_TWO = re.compile(r"\b(?:CANNOT|D'YE|GIMME|GONNA|GOTTA|LEMME|MORE'N)\b|\bWANNA$")


def has_keywords(answer: str, keywords: Sequence[str]) -> bool:
    """Every keyword occurs, whatever its case, be it inside a longer word. Keywords are text, not patterns."""
    return all(re.search(re.escape(keyword), answer, re.IGNORECASE) for keyword in keywords)


def keyword_frequency(answer: str, keyword: str, frequency: int, relation: str) -> bool:
    """The keyword occurs so often, whatever its case, be it inside longer words."""
    return holds(relation, len(re.findall(re.escape(keyword.strip()), answer, re.IGNORECASE)), frequency)


def avoids_words(answer: str, forbidden: Sequence[str]) -> bool:
    """None of the words occurs as a word of its own, whatever its case."""
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in forbidden)


def letter_frequency(answer: str, letter: str, frequency: int, relation: str) -> bool:
    """The letter occurs so often, whatever its case. It may be any sign; IFEval's code draws one at random then."""
    return holds(relation, answer.lower().count(letter.strip().lower()), frequency)


def capital_word_frequency(answer: str, frequency: int, relation: str) -> bool:
    """So many words in capital letters, as nltk's word_tokenize splits them: `BUILT-IN` is one, `DON'T` is two."""
    return holds(relation, count_capital_words(answer), frequency)


def count_capital_words(text: str) -> int:
    """Tokens without a small letter that have a capital one."""
    return sum(_capital_words(token.strip("'.")) for token in _BETWEEN_TOKENS.split(text))


def _capital_words(token: str) -> int:
    """0, 1 or more in a token between spaces and signs: a clitic such as 'S or N'T is one of its own."""
    stem, *clitic = _CLITIC.split(token)[:2]
    return stem.isupper() + len(_IN_TWO.findall(stem)) + len(clitic)


def has_no_comma(answer: str) -> bool:
    """No `,` anywhere."""
    return "," not in answer
