"""Answers made to tell graders apart: for each of LiveBench's tasks questions, contents, and ways to hand them in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

from tests.eval.livebench.crafted import instructions, numbers, programs, tables, words

Row = Mapping[str, Any]  # a question: task, truth, prompt, released and what else its grader looks at
ANSWERS = 640  # of each task, at least
MANY = 30  # contents, of which each is handed in bare, in the other simple ways only where there are fewer
SIMPLE = ("@", "<solution>@</solution>", "**@**", r"\boxed{@}")

# Ways to hand in a content, `@`; `#` is a wrong one of the same question.
PLAIN = ("@", " @ \n", "@.", "The answer is @", "the answer is: @.", "@\nThank you.", "Answer: @", "**Answer:** @",
         "Answer:\n@", "So (@)", "`@`", '"@"', "“@”", "‘@’", "@ or #", "# or rather @", "@\n\n#", "#\n\n@")  # fmt: skip
THOUGHTS = ("<think>@</think>", "<think>#</think>@", "<think>#</think>\n\n**@**", "@<think>#</think>", "<think>@")
BOLD = ("**@**", "***@***", "**@.**", "** @ **", "**@**, but not **#**", "**#** … **@**", "**\n@\n**", "*@*", "__@__",
        "**@** with **a**, **b** and **c**", "**Answer: @**", "***#***, no: ***@***")  # fmt: skip
TAGS = ("<solution>@</solution>", "<solution> @ </solution>", "<solution>\n@\n</solution>", "<Solution>@</Solution>",
        "<SOLUTION>@</SOLUTION>", "<solution>@", "@</solution>", "</solution>@</solution>", "<solution>@<solution>",
        "<solution>#</solution> no, <solution>@</solution>", "<solution>@</solution><solution>#</solution>",
        "<solution>#</solution>\n@", "**#**\n<solution>@</solution>", "<solution>**@**</solution>",
        "<solution></solution>**@**", r"<solution>\boxed{@}</solution>", r"<solution> </solution> \boxed{@}",
        "<solution><solution>@</solution></solution>", "<solution>\n#\n</solution> <solution>@</solution>")  # fmt: skip
BOXES = (r"\boxed{@}", r"$\boxed{@}$", r"$$\boxed{@}$$.", r"\boxed{\text{@}}", r"\boxed{\textbf{@}}", r"\boxed @",
         r"$\boxed @$", r"\boxed{@", r"\boxed{#} \boxed{@}", r"\boxed{@} \boxed{#", r"\boxed {@}", r"\fbox{@}",
         r"\\fbox{@}", r"\\boxed{\\textbf{@}}", r"\fbox{@} \boxed{#}", r"\boxed{\boxed{@}}", r"\textbf{@}", r"\boxed",
         r"\boxed3{@}", r"\boxed{ @ }", r"\boxed{@}" + " and so on" * 20, r"\mathbf{\boxed{@}}", r"\boxed{\fbox @}",
         r"\boxed{\mathbf{@}}", r"\boxed{$@$}")  # fmt: skip
FENCES = ("```\n@\n```", "```json\n@\n```", "```python\n@\n```", "```\n@", "@\n```", "Here is the table:\n@",
          "```html\n@\n```", "```markdown\n@\n```", "```\n#\n```\n\n```\n@\n```", "`@`")  # fmt: skip
ALL = PLAIN + THOUGHTS + BOLD + TAGS + BOXES + FENCES


def crafted() -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Every question with its answers, by task."""
    for task, questions in _questions().items():
        most = -(-ANSWERS // len(questions))
        for number, (row, contents, special) in enumerate(questions):
            yield {"task": task, **row}, _answers(contents, special, most, f"{task} {number}")


def _questions() -> dict[str, list[tuple[Row, Sequence[str], Sequence[str]]]]:
    """By task: rows, contents, and answers that are handed in as they are."""
    parts = (words, numbers, tables, programs, instructions)
    return {task: questions for part in parts for task, questions in part.QUESTIONS.items()}


def _answers(contents: Sequence[str], special: Iterable[str], most: int, seed: str) -> tuple[str, ...]:
    """At least `most` answers where there are so many: special ones, contents handed in simply, then as may be, drawn.

    Every second of these has the true content, which comes first.
    """
    ways = SIMPLE if len(contents) < MANY else SIMPLE[:1]
    kept = list(dict.fromkeys(["", *special, *(way.replace("@", one) for way in ways for one in contents)]))
    draw = random.Random(seed)
    true = _wrapped(contents[:1], contents[-1], draw)
    others = _wrapped(contents[1:], contents[-1], draw)
    wrapped = [one for pair in zip_longest(true, others) for one in pair if one is not None]
    left = list(dict.fromkeys(one for one in wrapped if one not in set(kept)))
    return tuple(kept + left[: max(most - len(kept), 0)])


def _wrapped(contents: Sequence[str], wrong: str, draw: random.Random) -> list[str]:
    made = [way.replace("#", wrong).replace("@", one) for one, way in product(contents, ALL)]
    draw.shuffle(made)
    return made
