"""Language: mend swapped letters in words of a small lexicon, and shift letters in the alphabet."""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from ktbench.eval.nano.question import Question

CATEGORY = "language"
# fmt: off
LEXICON = (
    "above", "bread", "chair", "dance", "earth", "flame", "grape", "house", "ideal", "juice", "knife", "lemon",
    "money", "night", "ocean", "paint", "quiet", "river", "stone", "table", "uncle", "voice", "water", "young",
    "brown", "cloud", "dream", "frost", "green", "heart", "light", "mouse", "north", "plant", "round", "sheep",
    "train", "white", "world", "build", "clean", "drink", "field", "great", "laugh", "month", "order", "peace",
    "right", "sugar",
)
# fmt: on


def typos(random: Random) -> Question:
    """`mend hosue rievr: ` → `house river`: in each word two neighbours after the first letter are swapped."""
    words = [random.choice(LEXICON) for _ in range(random.randint(2, 3))]
    wrong = " ".join(_swapped(random, word) for word in words)
    return Question(category=CATEGORY, task="typos", prompt=f"mend {wrong}: ", answer=" ".join(words))


def cipher(random: Random) -> Question:
    """`shift 2 abxyz: ` → `cdzab`."""
    shift = random.randint(1, 2)
    letters = [random.choice(ascii_lowercase) for _ in range(random.randint(5, 7))]
    answer = "".join(ascii_lowercase[(ascii_lowercase.index(letter) + shift) % 26] for letter in letters)
    return Question(category=CATEGORY, task="cipher", prompt=f"shift {shift} {''.join(letters)}: ", answer=answer)


def _swapped(random: Random, word: str) -> str:
    place = random.choice([i for i in range(1, len(word) - 1) if word[i] != word[i + 1]])
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
