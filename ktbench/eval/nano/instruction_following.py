"""Instruction following: edit a word by name of the edits, and repeat a word with a separator."""

from __future__ import annotations

from random import Random

from ktbench.eval.nano.question import Question

CATEGORY = "instruction_following"
SEPARATORS = "+-*/|~"
SHAPES = ("plain", "backwards", "doubled", "dashed")


def edit(random: Random) -> Question:
    """`write kilota upper doubled: ` → `KKIILLOOTTAA`: a case and a shape, each by its name."""
    word = _word(random, random.randint(2, 3))
    case, shape = random.choice(("lower", "upper")), random.choice(SHAPES)
    cased = word.upper() if case == "upper" else word
    return Question(
        category=CATEGORY, task="edit", prompt=f"write {word} {case} {shape}: ", answer=_shaped(cased, shape)
    )


def repeat(random: Random) -> Question:
    """`say lopi 3 times with +: ` → `lopi+lopi+lopi`."""
    word = _word(random, random.randint(1, 2)) + random.choice("nrst")
    times, separator = random.randint(2, 4), random.choice(SEPARATORS)
    prompt = f"say {word} {times} times with {separator}: "
    return Question(category=CATEGORY, task="repeat", prompt=prompt, answer=separator.join([word] * times))


def _word(random: Random, syllables: int) -> str:
    return "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(syllables))


def _shaped(word: str, shape: str) -> str:
    match shape:
        case "backwards":
            return word[::-1]
        case "doubled":
            return "".join(letter * 2 for letter in word)
        case "dashed":
            return "-".join(word)
        case _:
            return word
