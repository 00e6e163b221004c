"""The nano model's questions: two generated tasks in each of LiveBench's categories, each in five levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from random import Random
from string import ascii_lowercase

STOP = "\n"  # ends every answer in training, and every generated answer
LEVELS = (1, 2, 3, 4, 5)  # from short and plain to long, rare or noisy
_HELD_OUT_OF = 8  # one content in this many is reserved for evaluation

_PAIRS = ("()", "[]", "{}", "<>")
_VARIABLES = "abcdefgh"
_SEPARATORS = "+-*/|~"
_SHAPES = ("plain", "backwards", "doubled", "dashed")
_FEW_LETTERS = "abcdef"
MASK = "?"  # an unreadable letter
# fmt: off
COMMON = (
    "above", "bread", "chair", "dance", "earth", "flame", "grape", "house", "ideal", "juice", "knife", "lemon",
    "money", "night", "ocean", "paint", "quiet", "river", "stone", "table", "uncle", "voice", "water", "young",
    "brown", "cloud", "dream", "frost", "green", "heart", "light", "mouse", "north", "plant", "round", "sheep",
    "train", "white", "world", "build", "clean", "drink", "field", "great", "laugh", "month", "order", "peace",
    "right", "sugar",
)
RARE = (
    "abyss", "adobe", "aphid", "axiom", "bayou", "bezel", "bison", "blimp", "cacao", "caulk", "chasm", "cynic",
    "decoy", "dirge", "dowry", "druid", "edict", "elbow", "epoch", "ethos", "fauna", "fjord", "flute", "frond",
    "gecko", "gnome", "gourd", "guild", "hazel", "helix", "hinge", "husky", "icing", "igloo", "inlet", "ivory",
    "joust", "jumbo", "karma", "khaki", "kiosk", "lapel", "larva", "llama", "lymph", "mango", "midge", "moult",
    "nacho", "nymph", "oasis", "onset", "otter", "oxbow", "papal", "plumb", "prism", "pygmy", "quail", "quilt",
    "realm", "rhyme", "rumba", "sauna", "scarf", "shrub", "squid", "taiga", "thyme", "topaz", "tulip", "udder",
    "umbra", "usher", "valve", "vicar", "vodka", "wafer", "whelk", "wrist", "yacht", "yodel", "zebra", "zonal",
)
# fmt: on
LEXICON = COMMON + RARE
_BY_INITIAL = {initial: [word for word in LEXICON if word[0] == initial] for initial in {word[0] for word in LEXICON}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt with its single right answer; the model continues the prompt with the answer and `STOP`.

    `content` is independent of order and wording: questions that a reader would call variants of each other share it.
    `level` is one of `LEVELS`.
    """

    category: str
    task: str
    level: int
    prompt: str
    answer: str
    content: str

    def __post_init__(self) -> None:
        if STOP in self.prompt or STOP in self.answer:
            raise ValueError(f"question of {self.task}: neither prompt nor answer may hold a line break")
        if not self.answer.strip():
            raise ValueError(f"question of {self.task}: the answer is empty")

    @property
    def held_out(self) -> bool:
        """Whether it is reserved for evaluation, decided by a hash of task and content, whatever seed drew the
        question."""
        drawn = blake2b(f"{self.task}/{self.content}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") % _HELD_OUT_OF == 0


def grade(question: Question, answer: str) -> bool:
    """Whether the generated text is the answer, ignoring white space around it."""
    return answer.strip() == question.answer.strip()


Drawn = tuple[str, str, str]  # prompt, answer and content


@dataclass(frozen=True, slots=True)
class NanoTask:
    """A task of a category; `generate` draws prompt, answer and content of a level.

    `mix` weights the levels of the evaluation so that the shipped model answers some but not all questions.
    """

    category: str
    name: str
    generate: Callable[[Random, int], Drawn]
    mix: tuple[int, int, int, int, int] = (1, 1, 1, 1, 1)

    def drawn(self, random: Random, level: int) -> Iterator[Question]:
        """Endless questions of a level."""
        while True:
            prompt, answer, content = self.generate(random, level)
            yield Question(
                category=self.category, task=self.name, level=level, prompt=prompt, answer=answer, content=content
            )

    def evaluated(self, random: Random, level: int | None = None) -> Question:
        """One held-out question, of the given level or one drawn by `mix`."""
        level = level or random.choices(LEVELS, self.mix)[0]
        return next(question for question in self.drawn(random, level) if question.held_out)


def _size(random: Random, level: int, *ranges: tuple[int, int]) -> int:
    """A number within the range of the level, both ends included."""
    return random.randint(*ranges[level - 1])


def brackets(random: Random, level: int) -> Drawn:
    """`close [{(<: ` → `>)}]`; some pairs are already closed and need no answer, at most as many as the level."""
    opened = [random.choice(_PAIRS) for _ in range(_size(random, level, (4, 6), (7, 9), (10, 12), (13, 16), (17, 20)))]
    shown = [pair[0] for pair in opened]
    for _ in range(random.randint(0, level)):
        shown.insert(random.randint(1, len(shown)), random.choice(_PAIRS))
    answer = "".join(pair[1] for pair in reversed(opened))
    return f"close {''.join(shown)}: ", answer, answer


def trace(random: Random, level: int) -> Drawn:
    """`a=7;c=4;b=c;show b,a: ` → `b=4 a=7`: literals, then from level 2 on copies of any earlier variable."""
    literals, copies = ((3, 0), (2, 1), (2, 2), (2, 3), (3, 4))[level - 1]
    names = random.sample(_VARIABLES, literals + copies)
    values: dict[str, str] = {}
    lines: list[str] = []
    for place, name in enumerate(names):
        source = random.choice(names[:place]) if place >= literals else ""
        values[name] = values[source] if source else str(random.randrange(10))
        lines.append(f"{name}={source or values[name]}")
    shown = random.sample(names, random.randint(2, 3))
    answer = " ".join(f"{name}={values[name]}" for name in shown)
    return f"{';'.join(lines)};show {','.join(shown)}: ", answer, ";".join(sorted(lines))


def lookup(random: Random, level: int) -> Drawn:
    """`table k3 q7 z0 get z,k: ` → `z0 k3`; at level 5 keys are two of six letters, so many look alike."""
    count = _size(random, level, (3, 5), (6, 8), (9, 11), (12, 14), (5, 7))
    keys = list(ascii_lowercase) if level < 5 else [first + second for first in _FEW_LETTERS for second in _FEW_LETTERS]
    table = {key: str(random.randrange(10)) for key in random.sample(keys, count)}
    wanted = random.sample(list(table), random.randint(2, min(4, count)))
    rows = [key + value for key, value in table.items()]
    answer = " ".join(key + table[key] for key in wanted)
    return f"table {' '.join(rows)} get {','.join(wanted)}: ", answer, " ".join(sorted(rows))


def sort(random: Random, level: int) -> Drawn:
    """`sort d4 a7 f2: ` → `a7 d4 f2`; keys are distinct letters."""
    keys = random.sample(ascii_lowercase, _size(random, level, (3, 5), (5, 6), (6, 7), (7, 8), (9, 10)))
    rows = [f"{key}{random.randrange(10)}" for key in keys]
    return f"sort {' '.join(rows)}: ", " ".join(sorted(rows)), "".join(sorted(keys))


def edit(random: Random, level: int) -> Drawn:
    """`write kilota upper doubled: ` → `KKIILLOOTTAA`: a case and a shape, each by its name."""
    word = _word(random, _size(random, level, (2, 2), (3, 3), (4, 4), (5, 6), (7, 8)))
    case, shape = random.choice(("lower", "upper")), random.choice(_SHAPES)
    cased = word.upper() if case == "upper" else word
    shaped = {
        "plain": cased,
        "backwards": cased[::-1],
        "doubled": "".join(letter * 2 for letter in cased),
        "dashed": "-".join(cased),
    }
    return f"write {word} {case} {shape}: ", shaped[shape], word


def repeat(random: Random, level: int) -> Drawn:
    """`say lopin 3 times with +: ` → `lopin+lopin+lopin`."""
    word = _word(random, 2) + random.choice("nrst")
    times = _size(random, level, (2, 3), (4, 5), (6, 7), (8, 9), (10, 12))
    separator = random.choice(_SEPARATORS)
    return f"say {word} {times} times with {separator}: ", separator.join([word] * times), word


def _word(random: Random, syllables: int) -> str:
    return "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(syllables))


def typos(random: Random, level: int) -> Drawn:
    """`mend hosue rievr: ` → `house river`: common words with two neighbours swapped, then rare and noisier ones.

    Levels 1 and 2 swap two neighbours after the first letter; 3 and 4 shuffle all letters after it; 5 also masks one.
    Words are rare at levels 2, 4 and 5.
    """
    lexicon = COMMON if level in {1, 3} else LEXICON
    words = [random.choice(lexicon) for _ in range(_size(random, level, (2, 3), (3, 3), (3, 3), (3, 4), (3, 4)))]
    shown = " ".join(_damage(random, word, level) for word in words)
    return f"mend {shown}: ", " ".join(words), " ".join(sorted(words))


def _damage(random: Random, word: str, level: int) -> str:
    """The word with a typo of the level that is not a typo of another word."""
    while True:
        damaged = _swap(random, word) if level < 3 else word[0] + "".join(random.sample(word[1:], len(word) - 1))
        if level == 5:
            place = random.randrange(1, len(word))
            damaged = damaged[:place] + MASK + damaged[place + 1 :]
        if damaged != word and [candidate for candidate in _BY_INITIAL[word[0]] if _may_be(damaged, candidate)] == [
            word
        ]:
            return damaged


def _may_be(damaged: str, word: str) -> bool:
    """Whether the letters, except masked ones, are those of a word with the same initial."""
    return (Counter(damaged) - Counter(word)).keys() <= {MASK}


def _swap(random: Random, word: str) -> str:
    place = random.choice([i for i in range(1, len(word) - 1) if word[i] != word[i + 1]])
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def cipher(random: Random, level: int) -> Drawn:
    """`shift 2 abxyz: ` → `cdzab`."""
    shift = random.randint(1, (2, 3, 5, 7, 9)[level - 1])
    count = _size(random, level, (5, 6), (6, 8), (8, 10), (10, 12), (12, 14))
    letters = [random.choice(ascii_lowercase) for _ in range(count)]
    answer = "".join(ascii_lowercase[(ascii_lowercase.index(letter) + shift) % 26] for letter in letters)
    return f"shift {shift} {''.join(letters)}: ", answer, "".join(sorted(letters))


_Range = tuple[int, int]
_ADDENDS: tuple[tuple[_Range, _Range], ...] = (
    ((0, 9), (0, 9)),
    ((10, 99), (0, 9)),
    ((10, 99), (10, 99)),
    ((100, 999), (10, 99)),
    ((100, 999), (100, 999)),
)
_FACTORS: tuple[tuple[_Range, _Range], ...] = (
    ((2, 9), (2, 9)),
    ((10, 19), (2, 9)),
    ((20, 49), (2, 9)),
    ((50, 99), (2, 9)),
    ((11, 25), (11, 25)),
)


def addition(random: Random, level: int) -> Drawn:
    """`add 2+5 7+8: ` → `2+5=7 7+8=15`; operands grow to three digits."""
    pairs = _operands(random, level, _ADDENDS)
    answer = " ".join(f"{a}+{b}={a + b}" for a, b in pairs)
    return f"add {' '.join(f'{a}+{b}' for a, b in pairs)}: ", answer, _sort_pairs(pairs)


def products(random: Random, level: int) -> Drawn:
    """`mul 3*7 4*5: ` → `3*7=21 4*5=20`; no factor is 0 or 1, and they grow to two digits both."""
    pairs = _operands(random, level, _FACTORS)
    answer = " ".join(f"{a}*{b}={a * b}" for a, b in pairs)
    return f"mul {' '.join(f'{a}*{b}' for a, b in pairs)}: ", answer, _sort_pairs(pairs)


def _operands(random: Random, level: int, ranges: Sequence[tuple[_Range, _Range]]) -> list[tuple[int, int]]:
    """Two pairs, or three at level 1; either number may be the larger one."""
    first, second = ranges[level - 1]
    count = random.randint(2, 3 if level == 1 else 2)
    pairs = [(random.randint(*first), random.randint(*second)) for _ in range(count)]
    return [pair if random.random() < 0.5 else pair[::-1] for pair in pairs]


def _sort_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return " ".join(sorted(",".join(map(str, sorted(pair))) for pair in pairs))


def chain(random: Random, level: int) -> Drawn:
    """`route mz qm aq from a: ` → `aqmz`: each leg leads from one place to the next."""
    places = random.sample(ascii_lowercase, _size(random, level, (4, 6), (6, 7), (7, 8), (8, 9), (10, 12)))
    legs = [start + end for start, end in pairwise(places)]
    random.shuffle(legs)
    return f"route {' '.join(legs)} from {places[0]}: ", "".join(places), "".join(sorted(places))


def liars(random: Random, level: int) -> Drawn:
    """`who kT mLk zLm: ` → `kT mL zT`: k is honest, m claims that k lies, z claims that m lies.

    The first letter says what the first person is; every other is that person's claim about the one named after it: the
    previous person at levels 1 and 2, any earlier one at 3 and 4. At level 5 people come in any order.
    """
    names = random.sample(ascii_lowercase, _size(random, level, (3, 5), (6, 7), (4, 5), (6, 7), (4, 6)))
    honest = {names[0]: random.random() < 0.5}
    said = {names[0]: _letter(honest[names[0]])}
    for place, name in enumerate(names[1:]):
        about = names[place] if level < 3 else random.choice(names[: place + 1])
        claim = random.random() < 0.5
        honest[name] = claim == honest[about]
        said[name] = _letter(claim) + about
    shown = names if level < 5 else random.sample(names, len(names))
    answer = " ".join(name + _letter(honest[name]) for name in shown)
    return f"who {' '.join(name + said[name] for name in shown)}: ", answer, "".join(sorted(names))


def _letter(honest: bool) -> str:
    return "T" if honest else "L"


TASKS = (
    NanoTask("coding", "brackets", brackets),
    NanoTask("coding", "trace", trace),
    NanoTask("data_analysis", "lookup", lookup),
    NanoTask("data_analysis", "sort", sort, mix=(0, 0, 0, 0, 1)),
    NanoTask("instruction_following", "edit", edit, mix=(1, 1, 1, 1, 2)),
    NanoTask("instruction_following", "repeat", repeat),
    NanoTask("language", "typos", typos),
    NanoTask("language", "cipher", cipher),
    NanoTask("math", "addition", addition, mix=(6, 4, 2, 1, 1)),
    NanoTask("math", "products", products, mix=(6, 4, 1, 1, 1)),
    NanoTask("reasoning", "chain", chain, mix=(0, 0, 0, 0, 1)),
    NanoTask("reasoning", "liars", liars, mix=(5, 1, 1, 0, 0)),
)
