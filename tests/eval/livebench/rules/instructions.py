"""LiveBench's rule for instructions, and IFEval's (Zhou et al. 2023) for those of LiveBench's questions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def following(row: Row, answer: str) -> float:
    """Halfway between all and the fraction that is followed; from 2025-11-25 on of the first solution."""
    if row["released"] >= "2025-11-25" and (found := re.search("(?s)<solution>(.*?)</solution>", answer)):
        answer = found.group(1)
    answer = answer.strip()
    kept = [bool(answer) and bool(CHECKS[name](answer, **with_values(one))) for name, one in row["instructions"]]
    return (float(all(kept)) + sum(kept) / len(kept)) / 2


def with_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def compared(count: int, relation: str, number: int) -> bool:
    return count < number if relation == "less than" else count >= number


def low(text: str) -> str:
    return text.strip().lower()


def title(text: str) -> bool:
    """Double angle brackets on one line with something within."""
    return any(found.lstrip("<").rstrip(">").strip() for found in re.findall(r"<<[^\n]+>>", text))


def bullets(text: str, num_bullets: int) -> bool:
    starred = re.findall(r"^\s*\*[^\*].*$", text, flags=re.MULTILINE)
    dashed = re.findall(r"^\s*-.*$", text, flags=re.MULTILINE)
    return len(starred) + len(dashed) == num_bullets


def paragraphs(text: str, num_paragraphs: int) -> bool:
    """Parted by three asterisks; an empty one at either end does not count, one within spoils all."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    count = len(parts)
    for number, part in enumerate(parts):
        if not part.strip():
            if number not in (0, len(parts) - 1):
                return False
            count -= 1
    return count == num_paragraphs


def first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs are parted by two line ends; the word ends before a sign of punctuation."""
    parts = re.split(r"\n\n", text)
    count = sum(bool(part.strip()) for part in parts)
    if nth_paragraph > count:
        return False
    part = parts[nth_paragraph - 1].strip()
    if not part:
        return False
    word = part.split()[0].strip().lstrip("'").lstrip('"')
    ended = re.match(r"[^.,?!'\"]*", word)
    assert ended is not None
    return count == num_paragraphs and ended.group(0).lower() == first_word.lower()


def sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.split(r"\s?" + section_spliter + r"\s?\d+\s?", text)) - 1 >= num_sections


def as_json(text: str) -> bool:
    text = text.strip()
    for start in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(start)
    try:
        json.loads(text.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def two_responses(text: str) -> bool:
    parts = text.split("******")
    kept = []
    for number, part in enumerate(parts):
        if part.strip():
            kept.append(part)
        elif number not in (0, len(parts) - 1):
            return False
    return len(kept) == 2 and kept[0].strip() != kept[1].strip()


def postscript(text: str, postscript_marker: str) -> bool:
    marks = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    pattern = marks.get(postscript_marker, r"\s*" + postscript_marker.lower() + r".*$")
    return bool(re.findall(pattern, text.lower(), flags=re.MULTILINE))


CHECKS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": lambda text, keywords: all(re.search(word, text, re.IGNORECASE) for word in keywords),
    "keywords:forbidden_words": lambda text, forbidden_words: not any(
        re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words
    ),
    "length_constraints:number_words": lambda text, relation, num_words: compared(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    # Of the texts made here every sentence ends with a full stop, and nothing else does.
    "length_constraints:number_sentences": lambda text, relation, num_sentences: compared(
        len([part for part in re.split(r"\.(?:\s+|$)", text) if part.strip()]), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": paragraphs,
    "length_constraints:nth_paragraph_first_word": first_word,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:title": title,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": as_json,
    "detectable_format:constrained_response": lambda text: any(
        f"My answer is {word}." in text for word in ("yes", "no", "maybe")
    ),
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: low(text).startswith(low(prompt_to_repeat)),
    "startend:end_checker": lambda text, end_phrase: low(text.strip().strip('"')).endswith(low(end_phrase)),
    "startend:quotation": lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "punctuation:no_comma": lambda text: "," not in text,
}  # fmt: skip
