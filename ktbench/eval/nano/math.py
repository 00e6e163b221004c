"""Math: sums and products of pairs of digits, each written out with its result."""

from __future__ import annotations

from random import Random

from ktbench.eval.nano.question import Question

CATEGORY = "math"


def addition(random: Random) -> Question:
    """`add 2+5 7+8: ` → `2+5=7 7+8=15`."""
    pairs = _pairs(random, 0)
    prompt = f"add {' '.join(f'{a}+{b}' for a, b in pairs)}: "
    answer = " ".join(f"{a}+{b}={a + b}" for a, b in pairs)
    return Question(category=CATEGORY, task="addition", prompt=prompt, answer=answer)


def products(random: Random) -> Question:
    """`mul 3*7 4*5: ` → `3*7=21 4*5=20`; no factor is 0 or 1."""
    pairs = _pairs(random, 2)
    prompt = f"mul {' '.join(f'{a}*{b}' for a, b in pairs)}: "
    answer = " ".join(f"{a}*{b}={a * b}" for a, b in pairs)
    return Question(category=CATEGORY, task="products", prompt=prompt, answer=answer)


def _pairs(random: Random, least: int) -> list[tuple[int, int]]:
    return [(random.randint(least, 9), random.randint(least, 9)) for _ in range(random.randint(2, 3))]
