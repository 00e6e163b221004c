"""Training examples: endless questions and drills, cut into padded batches of ids and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from string import ascii_lowercase, digits

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM

from examples.nano.model import BOS, PAD, encode
from ktbench.eval.tasks.nano_questions import LEVELS, STOP, TASKS, NanoTask, Question

DRILL = "drill"  # the category of examples that are no task
IGNORED = -100  # a label that takes no part in the loss
BASICS = 38_400  # questions of tasks that come first: mostly of level 1, with a drill after every third
# Weights of the levels. With all of them from the start, a training of an hour does not learn to look up.
FIRST, LATER = (8, 2, 0, 0, 0), (4, 4, 3, 2, 1)
JUDGED = 4  # questions of each level of each task
PARTS = 2  # a batch is cut in two of like length and like size, so that little of it is padding


def recall(random: Random) -> Question:
    """`recall a4 k7 c1: ` → `c1 a4 k7`: pairs, then the same pairs in another order; every value has to be looked up.

    Questions of tasks ask for few bytes of that kind, and without it a model of this size learns it late or never
    (Olsson et al. 2022, "In-context Learning and Induction Heads").
    """
    keys = random.sample(ascii_lowercase, random.randint(2, 6))
    pairs = [key + random.choice(digits) for key in keys]
    again = random.sample(pairs, len(pairs))
    return Question(
        category=DRILL,
        task="recall",
        level=1,
        prompt=f"recall {' '.join(pairs)}: ",
        answer=" ".join(again),
        content=" ".join(sorted(pairs)),
    )


def example(question: Question) -> tuple[list[int], list[int]]:
    """Token ids and the labels of the next token: bytes of the answer and its stop, `IGNORED` over the prompt."""
    prompt, answer = [BOS, *encode(question.prompt)], encode(question.answer + STOP)
    ids = prompt + answer
    return ids[:-1], [IGNORED] * (len(prompt) - 1) + answer


def parts(questions: Iterator[Question], rows: int) -> list[tuple[Tensor, Tensor]]:
    """The next `rows` questions as `PARTS` pairs of ids and labels [rows, length], padded on the right."""
    drawn = sorted((example(question) for question in islice(questions, rows)), key=lambda row: len(row[0]))
    longest = len(drawn[-1][0])
    cut = min(range(1, rows), key=lambda n: max(n * len(drawn[n - 1][0]), (rows - n) * longest))
    return [padded(drawn[:cut]), padded(drawn[cut:])]


def padded(rows: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Ids and labels of examples [rows, longest]."""
    longest = max(len(ids) for ids, _ in rows)
    ids = [ids + [PAD] * (longest - len(ids)) for ids, _ in rows]
    labels = [labels + [IGNORED] * (longest - len(labels)) for _, labels in rows]
    return torch.tensor(ids), torch.tensor(labels)


def loss(model: DeepseekV3ForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Summed cross entropy (nats) of the labelled bytes."""
    wanted = labels != IGNORED
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return functional.cross_entropy(model.lm_head(hidden[wanted]), labels[wanted], reduction="sum")


@torch.no_grad()
def forced_accuracy(model: DeepseekV3ForCausalLM, questions: list[Question]) -> float:
    """Share of questions whose whole answer is the likeliest, each byte after the right ones before it (0 to 1)."""
    ids, labels = padded([example(question) for question in questions])
    likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1)
    return float(((likeliest == labels) | (labels == IGNORED)).all(dim=1).float().mean())


def training_questions(seed: int) -> Iterator[Question]:
    """Endless questions, the tasks in turn, none of them held out: first the basics, then all levels."""
    randoms = [Random(f"training/{seed}/{task.category}/{task.name}") for task in TASKS]
    drills, drawn = Random(f"training/{seed}/{DRILL}"), 0
    while True:
        for task, random in zip(TASKS, randoms, strict=True):
            yield _shown(task, random, FIRST if drawn < BASICS else LATER)
            drawn += 1
            if drawn % 3 == 0 and drawn <= BASICS:
                yield recall(drills)


def judged_questions() -> list[Question]:
    """Held-out questions that a training judges itself by: `JUDGED` of each level of each task."""
    random = Random("judged")
    levels = [level for level in LEVELS for _ in range(JUDGED)]
    return [task.evaluated(random, level) for task in TASKS for level in levels]


def _shown(task: NanoTask, random: Random, weights: Sequence[int]) -> Question:
    """The next question of a task that is not for evaluation alone."""
    (level,) = random.choices(LEVELS, weights)
    return next(question for question in task.drawn(random, level) if not question.held_out)
