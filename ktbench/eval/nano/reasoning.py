"""Reasoning: put shuffled legs of a journey in order, and tell truth-tellers from liars."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from string import ascii_lowercase

from ktbench.eval.nano.question import Question

CATEGORY = "reasoning"


def chain(random: Random) -> Question:
    """`route mz qm aq from a: ` → `aqmz`: each leg leads from one place to the next."""
    places = random.sample(ascii_lowercase, random.randint(4, 6))
    legs = [start + end for start, end in pairwise(places)]
    random.shuffle(legs)
    prompt = f"route {' '.join(legs)} from {places[0]}: "
    return Question(category=CATEGORY, task="chain", prompt=prompt, answer="".join(places))


def liars(random: Random) -> Question:
    """`who kT mL zL: ` → `kT mL zT`: k is honest, m says that k lies, z says that m lies.

    The first letter is what the first person is; every other is what that person says of the one before.
    """
    names = random.sample(ascii_lowercase, random.randint(3, 5))
    honest = [random.random() < 0.5]
    said = [honest[0]]
    for _ in names[1:]:
        said.append(random.random() < 0.5)
        honest.append(said[-1] == honest[-1])
    return Question(
        category=CATEGORY, task="liars", prompt=f"who {_people(names, said)}: ", answer=_people(names, honest)
    )


def _people(names: list[str], honest: list[bool]) -> str:
    return " ".join(name + ("T" if person else "L") for name, person in zip(names, honest, strict=True))
