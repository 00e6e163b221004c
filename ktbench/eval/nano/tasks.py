"""The twelve tasks, their evaluation questions, and the endless training questions that avoid them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from ktbench.eval.nano import coding, data_analysis, instruction_following, language, math, reasoning
from ktbench.eval.nano.drills import CATEGORY as DRILL
from ktbench.eval.nano.drills import recall
from ktbench.eval.nano.question import Question

Generator = Callable[[Random], Question]

TASKS: tuple[tuple[str, str, Generator], ...] = (
    (coding.CATEGORY, "brackets", coding.brackets),
    (coding.CATEGORY, "trace", coding.trace),
    (data_analysis.CATEGORY, "lookup", data_analysis.lookup),
    (data_analysis.CATEGORY, "sort", data_analysis.sort),
    (instruction_following.CATEGORY, "edit", instruction_following.edit),
    (instruction_following.CATEGORY, "repeat", instruction_following.repeat),
    (language.CATEGORY, "typos", language.typos),
    (language.CATEGORY, "cipher", language.cipher),
    (math.CATEGORY, "addition", math.addition),
    (math.CATEGORY, "products", math.products),
    (reasoning.CATEGORY, "chain", reasoning.chain),
    (reasoning.CATEGORY, "liars", reasoning.liars),
)
SEED = 7  # of the published evaluation
DRILLED = 48_000  # questions of a training with a drill after every third
HELD_OUT = 400  # questions of each task, of the published seed, that training never shows


def questions(per_task: int, seed: int = SEED) -> tuple[Question, ...]:
    """The first `per_task` evaluation questions of each task, no prompt twice; a longer list begins with a shorter one.

    The same on every platform: all draws are `random.Random`'s, seeded by text.
    """
    if per_task < 1:
        raise ValueError(f"per_task={per_task} must be at least 1")
    return tuple(question for row in TASKS for question in _first(row, per_task, f"evaluation/{seed}"))


def training(seed: int) -> Iterator[Question]:
    """Endless questions, the tasks in turn, none of them held out; at first every fourth one is a drill."""
    randoms = [Random(f"training/{seed}/{category}/{task}") for category, task, _ in TASKS]
    drills, drawn = Random(f"training/{seed}/{DRILL}"), 0
    while True:
        for (_, _, generate), random in zip(TASKS, randoms, strict=True):
            question = generate(random)
            if question.prompt in held_out():
                continue
            yield question
            drawn += 1
            if drawn <= DRILLED and drawn % 3 == 0:
                yield recall(drills)


@cache
def held_out() -> frozenset[str]:
    """Prompts of the published evaluation."""
    return frozenset(question.prompt for question in questions(HELD_OUT))


def _first(row: tuple[str, str, Generator], count: int, namespace: str) -> list[Question]:
    category, task, generate = row
    random = Random(f"{namespace}/{category}/{task}")
    found: dict[str, Question] = {}
    while len(found) < count:
        question = generate(random)
        found.setdefault(question.prompt, question)
    return list(found.values())
