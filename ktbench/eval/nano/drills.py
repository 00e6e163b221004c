"""Drills: training examples that are no task, from which a model learns to find what stood behind something before."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase, digits

from ktbench.eval.nano.question import Question

CATEGORY = "drill"


def recall(random: Random) -> Question:
    """`recall a4 k7 c1: ` → `c1 a4 k7`: pairs, then the same pairs in another order; every value has to be looked up.

    Questions of tasks ask for few bytes of that kind, and without it a model of this size learns it late or never
    (Olsson et al. 2022, "In-context Learning and Induction Heads").
    """
    keys = random.sample(ascii_lowercase, random.randint(2, 6))
    pairs = [key + random.choice(digits) for key in keys]
    again = random.sample(pairs, len(pairs))
    return Question(category=CATEGORY, task="recall", prompt=f"recall {' '.join(pairs)}: ", answer=" ".join(again))
