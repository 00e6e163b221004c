"""Reasoning: put a chain of shuffled relations in order, and tell truth-tellers from liars."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from string import ascii_lowercase

from ktbench.accuracy.nano.question import Question

CATEGORY = "reasoning"


def chain(random: Random) -> Question:
    """`order m>z q>m a>q from a: ` → `a>q>m>z`."""
    names = random.sample(ascii_lowercase, random.randint(3, 5))
    relations = [f"{more}>{less}" for more, less in pairwise(names)]
    random.shuffle(relations)
    prompt = f"order {' '.join(relations)} from {names[0]}: "
    return Question(category=CATEGORY, task="chain", prompt=prompt, answer=">".join(names))


def liars(random: Random) -> Question:
    """`kT m:kL z:mL who: ` → `kT mL zT`: k is honest, m says that k lies, z says that m lies."""
    names = random.sample(ascii_lowercase, random.randint(3, 5))
    honest = [random.random() < 0.5]
    statements = [f"{names[0]}{'T' if honest[0] else 'L'}"]
    for previous, name in pairwise(names):
        says_honest = random.random() < 0.5
        honest.append(says_honest == honest[-1])
        statements.append(f"{name}:{previous}{'T' if says_honest else 'L'}")
    answer = " ".join(name + ("T" if person else "L") for name, person in zip(names, honest, strict=True))
    return Question(category=CATEGORY, task="liars", prompt=f"{' '.join(statements)} who: ", answer=answer)
