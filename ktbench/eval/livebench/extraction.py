"""Final answers in generated text (tags, boxes, last lines), found as LiveBench finds them, and partial scores."""

from __future__ import annotations

import re
from collections.abc import Sequence

ANYWHERE = re.IGNORECASE | re.DOTALL  # tags in capitals and over several lines: some tasks read these, some do not


def without_thoughts(text: str) -> str:
    """The text without its `<think>…</think>` blocks."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)


def solutions(text: str, flags: re.RegexFlag = re.NOFLAG) -> list[str]:
    """The content of each `<solution>…</solution>`, in order; without flags only in lower case and on one line."""
    return re.findall(r"<solution>(.*?)</solution>", text, flags)


def solutions_or_between(text: str, flags: re.RegexFlag = re.NOFLAG) -> list[str]:
    """Like `solutions`; without any, the text between two closing tags."""
    return solutions(text, flags) or re.findall(r"</solution>(.*?)</solution>", text, flags)


def last_solution(text: str, flags: re.RegexFlag = re.NOFLAG) -> str | None:
    """The last of `solutions`; None without any."""
    return next(reversed(solutions(text, flags)), None)


def last_box(text: str) -> str | None:
    r"""What the last `\boxed{…}`, else the last `\fbox{…}` holds, without `$`; None without one that closes.

    For `\boxed 3$` it is the text after the last such box, up to the `$`. Raises ValueError for a box without a brace:
    LiveBench's graders fail on it, which makes the answer wrong, whatever else it contains.
    """
    if r"\boxed " in text:
        return text.rpartition(r"\boxed ")[2].partition("$")[0]
    name = r"\boxed" if r"\boxed" in text else r"\fbox"
    start = text.rfind(name)
    end = _closing_brace(text, start) if start >= 0 else None
    return None if end is None else _content(text[start : end + 1].replace("$", "").replace("fbox", "boxed"))


def _content(box: str) -> str:
    opening = r"\boxed " if r"\boxed " in box else r"\boxed{"
    if not box.startswith(opening):
        raise ValueError(f"a box without a brace: {box[:40]}")
    return box[len(opening) : None if opening[-1] == " " else -1]


def _closing_brace(text: str, start: int) -> int | None:
    """The position at which all braces opened from `start` on are closed; None without one."""
    open_braces = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            open_braces += 1
        elif text[at] == "}":
            open_braces -= 1
            if open_braces == 0:
                return at
    return None


def with_boxes(text: str) -> str:
    r"""The text with `\\boxed{` for `\\fbox{`, as written in text with doubled backslashes."""
    return text.replace(r"\\fbox{", r"\\boxed{")


def without(text: str, *parts: str) -> str:
    """The text with each of `parts` removed in turn."""
    for part in parts:
        text = text.replace(part, "")
    return text


def last_line(text: str) -> str:
    """The last line of a text that is stripped first."""
    return text.strip().split("\n")[-1]


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Levenshtein's distance: the fewest insertions, deletions and substitutions that make b of a."""
    above = list(range(len(b) + 1))
    for row, left in enumerate(a, start=1):
        here = [row]
        for column, right in enumerate(b, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (left != right)))
        above = here
    return above[-1]


def partial_score(right: Sequence[bool], total: int) -> float:
    """The score of `total` answers, 0 to 1: the mean of the fraction that is right and of 1 if all are, else 0."""
    return ((sum(right) == total) + sum(right) / total) / 2
