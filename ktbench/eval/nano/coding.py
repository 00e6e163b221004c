"""Coding: close nested brackets, and print variables after a few assignments."""

from __future__ import annotations

from random import Random

from ktbench.eval.nano.question import Question

CATEGORY = "coding"
PAIRS = ("()", "[]", "{}", "<>")
NAMES = "abcdefgh"


def brackets(random: Random) -> Question:
    """`close [{(<: ` → `>)}]`; at most one pair is closed already and asks for nothing."""
    opened = [random.choice(PAIRS) for _ in range(random.randint(3, 7))]
    shown = [pair[0] for pair in opened]
    for _ in range(random.randint(0, 1)):
        shown.insert(random.randint(1, len(shown)), random.choice(PAIRS))
    answer = "".join(pair[1] for pair in reversed(opened))
    return Question(category=CATEGORY, task="brackets", prompt=f"close {''.join(shown)}: ", answer=answer)


def trace(random: Random) -> Question:
    """`a=7;c=4;b=c;show b,a: ` → `b=4 a=7`: two literals, then copies of any earlier variable."""
    names = random.sample(NAMES, random.randint(3, 4))
    values: dict[str, str] = {}
    lines: list[str] = []
    for place, name in enumerate(names):
        source = random.choice(names[:place]) if place >= 2 else ""
        values[name] = values[source] if source else str(random.randrange(10))
        lines.append(f"{name}={source or values[name]}")
    asked = random.sample(names, random.randint(2, 3))
    answer = " ".join(f"{name}={values[name]}" for name in asked)
    return Question(
        category=CATEGORY, task="trace", prompt=f"{';'.join(lines)};show {','.join(asked)}: ", answer=answer
    )
