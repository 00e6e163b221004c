"""The nano model's tasks: two generated ones in each of LiveBench's categories, answered by one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random
from string import ascii_lowercase

from ktbench.eval.tasks.harness import GRADED, BuiltTask, QuestionSource, build
from ktbench.eval.tasks.rows import Row, Rows, Splits
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

STOP = "\n"  # ends every answer in training, and every generated answer
SEED = 7  # of the published evaluation
HELD_OUT = 400  # questions of each task, of the published seed, that training never shows
PER_TASK = 200  # questions where the suite sets no limit

_PAIRS = ("()", "[]", "{}", "<>")
_VARIABLES = "abcdefgh"
_SEPARATORS = "+-*/|~"
_SHAPES = ("plain", "backwards", "doubled", "dashed")
# fmt: off
LEXICON = (
    "above", "bread", "chair", "dance", "earth", "flame", "grape", "house", "ideal", "juice", "knife", "lemon",
    "money", "night", "ocean", "paint", "quiet", "river", "stone", "table", "uncle", "voice", "water", "young",
    "brown", "cloud", "dream", "frost", "green", "heart", "light", "mouse", "north", "plant", "round", "sheep",
    "train", "white", "world", "build", "clean", "drink", "field", "great", "laugh", "month", "order", "peace",
    "right", "sugar",
)
# fmt: on


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A prompt with its one right answer; the model continues the prompt with the answer and `STOP`."""

    category: str
    task: str
    prompt: str
    answer: str

    def __post_init__(self) -> None:
        if STOP in self.prompt or STOP in self.answer:
            raise ValueError(f"question of {self.task}: neither prompt nor answer may hold a line break")
        if not self.answer.strip():
            raise ValueError(f"question of {self.task}: the answer is empty")


def grade(question: Question, answer: str) -> bool:
    """Whether the generated text is the answer, up to white space around it."""
    return answer.strip() == question.answer.strip()


@dataclass(frozen=True, slots=True)
class NanoTask:
    """A task of a category; `generate` draws a prompt and its answer."""

    category: str
    name: str
    generate: Callable[[Random], tuple[str, str]]

    def draw(self, random: Random) -> Question:
        """One question."""
        prompt, answer = self.generate(random)
        return Question(category=self.category, task=self.name, prompt=prompt, answer=answer)


def brackets(random: Random) -> tuple[str, str]:
    """`close [{(<: ` → `>)}]`; at most one pair is closed already and needs no answer."""
    opened = [random.choice(_PAIRS) for _ in range(random.randint(3, 7))]
    shown = [pair[0] for pair in opened]
    for _ in range(random.randint(0, 1)):
        shown.insert(random.randint(1, len(shown)), random.choice(_PAIRS))
    return f"close {''.join(shown)}: ", "".join(pair[1] for pair in reversed(opened))


def trace(random: Random) -> tuple[str, str]:
    """`a=7;c=4;b=c;show b,a: ` → `b=4 a=7`: two literals, then copies of any earlier variable."""
    names = random.sample(_VARIABLES, random.randint(3, 4))
    values: dict[str, str] = {}
    lines: list[str] = []
    for place, name in enumerate(names):
        source = random.choice(names[:place]) if place >= 2 else ""
        values[name] = values[source] if source else str(random.randrange(10))
        lines.append(f"{name}={source or values[name]}")
    shown = random.sample(names, random.randint(2, 3))
    return f"{';'.join(lines)};show {','.join(shown)}: ", " ".join(f"{name}={values[name]}" for name in shown)


def lookup(random: Random) -> tuple[str, str]:
    """`table k3 q7 z0 get zk: ` → `z0 k3`."""
    keys = random.sample(ascii_lowercase, random.randint(3, 5))
    table = {key: str(random.randrange(10)) for key in keys}
    wanted = random.sample(keys, random.randint(2, min(4, len(keys))))
    rows = " ".join(key + value for key, value in table.items())
    return f"table {rows} get {''.join(wanted)}: ", " ".join(key + table[key] for key in wanted)


def sort(random: Random) -> tuple[str, str]:
    """`sort d4 a7 f2: ` → `a7 d4 f2`; keys are distinct letters."""
    keys = random.sample(ascii_lowercase, random.randint(3, 5))
    rows = [f"{key}{random.randrange(10)}" for key in keys]
    return f"sort {' '.join(rows)}: ", " ".join(sorted(rows))


def edit(random: Random) -> tuple[str, str]:
    """`write kilota upper doubled: ` → `KKIILLOOTTAA`: a case and a shape, each by its name."""
    word = _word(random, random.randint(2, 3))
    case, shape = random.choice(("lower", "upper")), random.choice(_SHAPES)
    cased = word.upper() if case == "upper" else word
    shaped = {
        "plain": cased,
        "backwards": cased[::-1],
        "doubled": "".join(letter * 2 for letter in cased),
        "dashed": "-".join(cased),
    }
    return f"write {word} {case} {shape}: ", shaped[shape]


def repeat(random: Random) -> tuple[str, str]:
    """`say lopi 3 times with +: ` → `lopi+lopi+lopi`."""
    word = _word(random, random.randint(1, 2)) + random.choice("nrst")
    times, separator = random.randint(2, 4), random.choice(_SEPARATORS)
    return f"say {word} {times} times with {separator}: ", separator.join([word] * times)


def _word(random: Random, syllables: int) -> str:
    return "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(syllables))


def typos(random: Random) -> tuple[str, str]:
    """`mend hosue rievr: ` → `house river`: in each word two neighbours after the first letter are swapped."""
    words = [random.choice(LEXICON) for _ in range(random.randint(2, 3))]
    return f"mend {' '.join(_swapped(random, word) for word in words)}: ", " ".join(words)


def _swapped(random: Random, word: str) -> str:
    place = random.choice([i for i in range(1, len(word) - 1) if word[i] != word[i + 1]])
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def cipher(random: Random) -> tuple[str, str]:
    """`shift 2 abxyz: ` → `cdzab`."""
    shift = random.randint(1, 2)
    letters = [random.choice(ascii_lowercase) for _ in range(random.randint(5, 7))]
    answer = "".join(ascii_lowercase[(ascii_lowercase.index(letter) + shift) % 26] for letter in letters)
    return f"shift {shift} {''.join(letters)}: ", answer


def addition(random: Random) -> tuple[str, str]:
    """`add 2+5 7+8: ` → `2+5=7 7+8=15`."""
    pairs = _digits(random, 0)
    return f"add {' '.join(f'{a}+{b}' for a, b in pairs)}: ", " ".join(f"{a}+{b}={a + b}" for a, b in pairs)


def products(random: Random) -> tuple[str, str]:
    """`mul 3*7 4*5: ` → `3*7=21 4*5=20`; no factor is 0 or 1."""
    pairs = _digits(random, 2)
    return f"mul {' '.join(f'{a}*{b}' for a, b in pairs)}: ", " ".join(f"{a}*{b}={a * b}" for a, b in pairs)


def _digits(random: Random, least: int) -> list[tuple[int, int]]:
    return [(random.randint(least, 9), random.randint(least, 9)) for _ in range(random.randint(2, 3))]


def chain(random: Random) -> tuple[str, str]:
    """`route mz qm aq from a: ` → `aqmz`: each leg leads from one place to the next."""
    places = random.sample(ascii_lowercase, random.randint(4, 6))
    legs = [start + end for start, end in pairwise(places)]
    random.shuffle(legs)
    return f"route {' '.join(legs)} from {places[0]}: ", "".join(places)


def liars(random: Random) -> tuple[str, str]:
    """`who kT mL zL: ` → `kT mL zT`: k is honest, m claims that k lies, z claims that m lies.

    The first letter is what the first person is; every other is that person's claim about the one before.
    """
    names = random.sample(ascii_lowercase, random.randint(3, 5))
    honest = [random.random() < 0.5]
    claims = [honest[0]]
    for _ in names[1:]:
        claims.append(random.random() < 0.5)
        honest.append(claims[-1] == honest[-1])
    return f"who {_people(names, claims)}: ", _people(names, honest)


def _people(names: list[str], honest: list[bool]) -> str:
    return " ".join(name + ("T" if person else "L") for name, person in zip(names, honest, strict=True))


TASKS = (
    NanoTask("coding", "brackets", brackets),
    NanoTask("coding", "trace", trace),
    NanoTask("data_analysis", "lookup", lookup),
    NanoTask("data_analysis", "sort", sort),
    NanoTask("instruction_following", "edit", edit),
    NanoTask("instruction_following", "repeat", repeat),
    NanoTask("language", "typos", typos),
    NanoTask("language", "cipher", cipher),
    NanoTask("math", "addition", addition),
    NanoTask("math", "products", products),
    NanoTask("reasoning", "chain", chain),
    NanoTask("reasoning", "liars", liars),
)


@cache
def questions(per_task: int, seed: int = SEED) -> tuple[Question, ...]:
    """The first `per_task` evaluation questions of each task, no prompt twice; a longer list begins with a shorter one.

    The same on every platform: all draws are `random.Random`'s, seeded by text.
    """
    if per_task < 1:
        raise ValueError(f"per_task={per_task} must be at least 1")
    return tuple(question for task in TASKS for question in _first(task, per_task, f"evaluation/{seed}"))


def _first(task: NanoTask, count: int, namespace: str) -> list[Question]:
    random = Random(f"{namespace}/{task.category}/{task.name}")
    found: dict[str, Question] = {}
    while len(found) < count:
        question = task.draw(random)
        found.setdefault(question.prompt, question)
    return list(found.values())


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.seed == SEED and (suite.limit or 0) > HELD_OUT:
        raise ValueError(
            f"limit={suite.limit}: training never shows the first {HELD_OUT} questions of suite.seed={SEED}, allowed "
            f"are 1 to {HELD_OUT}; other seeds may draw questions that training has shown"
        )
    drawn = questions(suite.limit or PER_TASK, suite.seed)
    return {"test": Rows({"prompt": one.prompt, "question": one} for one in drawn if one.task == name)}


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    longest = max(len(row["question"].answer.encode()) for row in splits["test"])
    config = {
        **GRADED,
        "task": f"nano_{name}",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": lambda row: row["question"].answer,
        "process_results": _graded,
        # A token is a byte. An answer twice as long as the longest right one is wrong however it continues.
        "generation_kwargs": {"until": [STOP], "max_gen_toks": 2 * longest, "do_sample": False, "temperature": 0.0},
    }
    return BuiltTask(task=build(config, splits), setting="right where the line is the answer")


def _graded(row: Row, answers: Sequence[str]) -> dict[str, float]:
    return {SCORE: float(grade(row["question"], answers[0]))}


SOURCES = (
    QuestionSource(prefix="nano", names=tuple(task.name for task in TASKS), read=_read, build=_build, ships=True),
)
