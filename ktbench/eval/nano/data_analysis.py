"""Data analysis: look up rows of a small table, and sort its rows by their key."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from ktbench.eval.nano.question import Question

CATEGORY = "data_analysis"


def lookup(random: Random) -> Question:
    """`table k3 q7 z0 get zk: ` → `z0 k3`."""
    keys = random.sample(ascii_lowercase, random.randint(3, 5))
    table = {key: str(random.randrange(10)) for key in keys}
    asked = random.sample(keys, random.randint(2, min(4, len(keys))))
    rows = " ".join(key + value for key, value in table.items())
    answer = " ".join(key + table[key] for key in asked)
    return Question(category=CATEGORY, task="lookup", prompt=f"table {rows} get {''.join(asked)}: ", answer=answer)


def sort(random: Random) -> Question:
    """`sort d4 a7 f2: ` → `a7 d4 f2`; keys are distinct letters."""
    keys = random.sample(ascii_lowercase, random.randint(3, 5))
    rows = [f"{key}{random.randrange(10)}" for key in keys]
    return Question(category=CATEGORY, task="sort", prompt=f"sort {' '.join(rows)}: ", answer=" ".join(sorted(rows)))
