"""Instructions about the form of an answer: bullets, sections, marks, JSON, its beginning and its end."""

from __future__ import annotations

import json
import re

CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

# After a star comes anything but a second one, even the end of the line: the next line is part of the bullet then.
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*].*", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-", re.MULTILINE)
_HIGHLIGHTS = (re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*"))
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCES = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}


def number_placeholders(answer: str, least: int) -> bool:
    """At least so many `[placeholders]`, each within a line."""
    closed = [part for line in answer.split("\n") for part in line.split("]")[:-1]]
    return sum("[" in part for part in closed) >= least


def has_postscript(answer: str, marker: str) -> bool:
    """The marker occurs, whatever its case; in `P.P.S` and `P.S.` a space may follow each full stop."""
    marker = marker.strip()
    pattern = _POSTSCRIPTS.get(marker) or re.compile(re.escape(marker.lower()))
    return bool(pattern.search(answer.lower()))


def number_bullets(answer: str, number: int) -> bool:
    """Exactly so many lines that begin with `*` or `-`. A line `---` is one, too."""
    return len(_STAR_BULLET.findall(answer)) + len(_DASH_BULLET.findall(answer)) == number


def has_constrained_response(answer: str) -> bool:
    """One of the three allowed answers occurs, in exactly these letters."""
    return any(response in answer for response in CONSTRAINED_RESPONSES)


def number_highlights(answer: str, least: int) -> bool:
    """At least so many spans in `*one*` or `**two**` stars that are not blank, each within a line."""
    spans = [span for pattern in _HIGHLIGHTS for span in pattern.findall(answer)]
    return sum(bool(span.strip()) for span in spans) >= least


def number_sections(answer: str, splitter: str, least: int) -> bool:
    """At least so many headings, each the splitter and a number, with at most one space between; case matters."""
    return len(re.findall(rf"{re.escape(splitter.strip())}\s?\d+", answer)) >= least


def is_json(answer: str) -> bool:
    """The whole answer is JSON, in a code fence or not."""
    text = answer.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def has_title(answer: str) -> bool:
    """A `<<title>>` that is not blank, within a line."""
    return any(title.lstrip("<").rstrip(">").strip() for title in _TITLE.findall(answer))


def is_two_responses(answer: str) -> bool:
    """Two different responses with `******` between them, and nothing else but such marks at the ends."""
    first, *others = [response.strip() for response in answer.split("******")]
    if not all(others[:-1]):
        return False
    responses = [response for response in (first, *others) if response]
    return len(responses) == 2 and responses[0] != responses[1]


def repeats_prompt(answer: str, prompt: str) -> bool:
    """The answer begins with the prompt, whatever the case."""
    return answer.strip().lower().startswith(prompt.strip().lower())


def ends_with(answer: str, phrase: str) -> bool:
    """The answer ends with the phrase, whatever the case and with or without quotation marks around the answer."""
    return answer.strip().strip('"').lower().endswith(phrase.strip().lower())


def is_quoted(answer: str) -> bool:
    """The whole answer is in straight double quotation marks."""
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'
