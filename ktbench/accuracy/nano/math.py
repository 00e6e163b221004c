"""Math: sums of long numbers and products digit by digit, every number with its lowest digit first."""

from __future__ import annotations

from random import Random
from string import digits

from ktbench.accuracy.nano.question import Question

CATEGORY = "math"


def addition(random: Random) -> Question:
    """`add 482106+390715= ` → `7738111`-like sums; lowest digit first, so that a carry goes on to the right."""
    length = random.randint(3, 5)
    one, other = (_digits(random, length) for _ in range(2))
    total = int(one[::-1]) + int(other[::-1])
    answer = f"{total:0{length + 1}d}"[::-1]
    return Question(category=CATEGORY, task="addition", prompt=f"add {one}+{other}= ", answer=answer)


def products(random: Random) -> Question:
    """`mul 3472*9158= ` → `7456`: the last digit of the product of each pair."""
    length = random.randint(5, 7)
    one, other = (_digits(random, length) for _ in range(2))
    answer = "".join(str(int(a) * int(b) % 10) for a, b in zip(one, other, strict=True))
    return Question(category=CATEGORY, task="products", prompt=f"mul {one}*{other}= ", answer=answer)


def _digits(random: Random, length: int) -> str:
    return "".join(random.choice(digits) for _ in range(length))
