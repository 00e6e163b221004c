"""Final answers in generated text (tags, boxes, bold words, fences, last lines), and their partial scores."""

from __future__ import annotations

import re
from collections.abc import Sequence


def without_thoughts(text: str) -> str:
    """The text without its `<think>…</think>` blocks."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)


def solutions(text: str) -> list[str]:
    """What stands in each `<solution>…</solution>`, stripped, in order."""
    return [found.strip() for found in re.findall(r"<solution>(.*?)</solution>", text, flags=re.DOTALL)]


def last_solution(text: str) -> str | None:
    """What stands in the last `<solution>…</solution>`; None without any."""
    return next(reversed(solutions(text)), None)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}` or `\fbox{…}` whose braces close, stripped; None without any."""
    ends = _braces(text)
    starts = [found.end() - 1 for found in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]
    closed = [start for start in starts if start in ends]
    return text[closed[-1] + 1 : ends[closed[-1]]].strip() if closed else None


def _braces(text: str) -> dict[int, int]:
    r"""Where each brace that opens is closed; `\{` and `\}` are no braces."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for found in re.finditer(r"\\.|[{}]", text, flags=re.DOTALL):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends


def bold(text: str) -> list[str]:
    """What stands in each `**…**`, stripped, in order."""
    return [found.strip() for found in re.findall(r"\*\*([^*]+)\*\*", text)]


def last_line(text: str) -> str:
    """The last line that is not blank, stripped; '' without any."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def last_fence(text: str) -> str | None:
    """What stands in the last ``` fence, without the language's name; None without any."""
    found = re.findall(r"```[^\n`]*\n(.*?)```", text, flags=re.DOTALL)
    return found[-1].strip() if found else None


def plain(text: str) -> str:
    r"""The words of a short LaTeX answer: without `\text{…}` and its like, `$`, escaped spaces and outer blanks."""
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    return re.sub(r"\\[ ,;!]|~", " ", text.replace("$", "")).strip()


def items(text: str) -> list[str]:
    """The items of a list separated by commas, stripped, in lower case."""
    return [item.strip().lower() for item in text.split(",")]


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
    """The score of `total` answers, 0 to 1: the mean of the fraction that is right and of 1 where all are, else 0."""
    return ((sum(right) == total) + sum(right) / total) / 2
