"""Simulated studies with a known truth: how often intervals of averages hold it, and how often verdicts are false.

`python -m tests.results.coverage` prints the table of docs/accuracy.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ktbench.results.scores import Pair, ScoreVerdict, change_of
from ktbench.results.strata import Stratum, ends_of_average

Draw = Callable[[np.random.Generator], Sequence[Stratum]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """`n` questions whose value is one of `chances` (value: probability), in clusters of `size`.

    In `alike` of the clusters all questions have one value, in the others each has its own.
    """

    n: int
    chances: dict[float, float]
    size: int = 1
    alike: float = 1.0

    @cached_property
    def mean(self) -> float:
        return sum(value * chance for value, chance in self.chances.items())

    def draw(self, rng: np.random.Generator, share: float) -> Stratum:
        values, chances = [*self.chances], [*self.chances.values()]
        clusters = self.n // self.size
        drawn = rng.choice(values, (clusters, self.size), p=chances)
        together = rng.random(clusters) < self.alike
        drawn[together] = drawn[together, :1]
        names = tuple(str(number) for number in range(clusters) for _ in range(self.size)) if self.size > 1 else ()
        return Stratum(share=share, values=tuple(drawn.ravel().tolist()), clusters=names)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Averages with equal shares of tasks: of scores, or of differences of scores (`least` is -1)."""

    name: str
    draw: Draw
    truth: float
    least: float = -1.0

    def holds(self, rng: np.random.Generator) -> bool:
        """Whether the interval of one simulated study holds the truth."""
        ends = ends_of_average(self.draw(rng), self.least)
        return ends is not None and ends[0] <= self.truth <= ends[1]

    def coverage(self, studies: int, seed: int = 21) -> float:
        rng = np.random.default_rng(seed)
        return sum(self.holds(rng) for _ in range(studies)) / studies

    def false_verdicts(self, studies: int, seed: int = 22) -> float:
        """Share of studies without a difference in truth that are called lower or higher."""
        rng = np.random.default_rng(seed)
        found = [change_of([_paired(one) for one in self.draw(rng)]).verdict for _ in range(studies)]
        return sum(verdict is not ScoreVerdict.NONE_SHOWN for verdict in found) / studies


def _paired(stratum: Stratum) -> tuple[float, list[Pair]]:
    clusters = stratum.clusters or ("",) * len(stratum.values)
    return stratum.share, [Pair(max(-v, 0.0), max(v, 0.0), c) for v, c in zip(stratum.values, clusters, strict=True)]


def of_tasks(name: str, tasks: Sequence[Task], least: float = -1.0) -> Scenario:
    return Scenario(
        name=name,
        draw=lambda rng: [task.draw(rng, 1 / len(tasks)) for task in tasks],
        truth=sum(task.mean for task in tasks) / len(tasks),
        least=least,
    )


def flips(lost: float, gained: float) -> dict[float, float]:
    return {-1.0: lost, 0.0: 1 - lost - gained, 1.0: gained}


def right(chance: float) -> dict[float, float]:
    return {0.0: 1 - chance, 1.0: chance}


UNLIKE = (164, 500, 1319, 2286)  # HumanEval, MBPP, GSM8K, StrategyQA
RATES = (0.6, 0.3, 0.1, 0.05)


def unlike(lost: float) -> list[Task]:
    """Tasks with unlike flips, of which `lost` is the share of lost ones."""
    return [Task(n=n, chances=flips(lost * rate, (1 - lost) * rate)) for n, rate in zip(UNLIKE, RATES, strict=True)]


def partial_credit(shift: float) -> list[Task]:
    moved = {-0.5: 0.05 + shift, -0.1: 0.2, 0.0: 0.5 - shift, 0.1: 0.2, 0.5: 0.05}
    whole = flips(0.1 + shift, 0.1)
    return [Task(n=n, chances=moved) for n in (50, 100, 150)] + [Task(n=n, chances=whole) for n in (50, 100, 150)]


def clustered(size: int, lost: float, alike: float = 1.0) -> list[Task]:
    return [
        Task(n=n, chances=flips(lost * rate, (1 - lost) * rate), size=size, alike=alike)
        for n, rate in zip((150, 250, 400, 600), (0.4, 0.3, 0.2, 0.1), strict=True)
    ]


def _sampled(rng: np.random.Generator, *, kept: float, sizes: Sequence[int], samples: int) -> list[Stratum]:
    """Means of several answers to questions of unlike difficulty, of which a change keeps some right."""
    strata = []
    for n in sizes:
        chance = rng.beta(1.5, 1.0, n)
        before, after = (rng.binomial(samples, p) / samples for p in (chance, kept * chance))
        strata.append(Stratum(share=1 / len(sizes), values=tuple((after - before).tolist())))
    return strata


def several_samples(kept: float) -> Draw:
    return partial(_sampled, kept=kept, sizes=(50, 100, 200), samples=5)


def scores(name: str, sizes: Sequence[int], chances: Sequence[float], size: int = 1) -> Scenario:
    tasks = [Task(n=n, chances=right(p), size=size) for n, p in zip(sizes, chances, strict=True)]
    return of_tasks(name, tasks, least=0.0)


_PARTLY = {0.0: 0.2, 0.25: 0.1, 0.5: 0.2, 0.75: 0.2, 1.0: 0.3}
RARE = [Task(n=200, chances=flips(rate, rate / 2)) for rate in (0.001, 0.002, 0.004, 0.008) for _ in range(3)]
# What must hold the truth as often as it says.
SCENARIOS = (
    of_tasks("tasks of unlike flips, no change", unlike(0.5)),
    of_tasks("tasks of unlike flips, a loss", unlike(0.65)),
    of_tasks("rare flips, 12 tasks of 200 questions", RARE),
    of_tasks("rare flips, tasks of unlike size", [Task(n=n, chances=flips(0.01, 0.006)) for n in UNLIKE]),
    of_tasks("partial credit beside right or wrong", partial_credit(0.05)),
    Scenario(name="five samples a question", draw=several_samples(0.95), truth=-0.05 * 0.6),
    of_tasks("pairs", clustered(2, 0.65)),
    of_tasks("pairs, half of them alike", clustered(2, 0.65, 0.5)),
    of_tasks("fives", clustered(5, 0.65)),
    of_tasks("fives, half of them alike", clustered(5, 0.65, 0.5)),
    scores("scores, tasks of unlike size", UNLIKE, (0.5, 0.6, 0.9, 0.95)),
    scores("scores, nearly all right", (200,) * 6, (0.97, 0.98, 0.99, 0.995, 0.95, 0.9)),
    of_tasks("scores with partial credit", [Task(n=n, chances=_PARTLY) for n in (40, 80, 160)], 0.0),
    scores("scores, fives", (150, 250, 400), (0.6, 0.7, 0.9), size=5),
)
# So few flips or clusters that an interval can only be too wide.
SPARSE = (
    of_tasks("one flip expected in the smallest task", [Task(n=n, chances=flips(0.003, 0.002)) for n in UNLIKE]),
    of_tasks("ten clusters of five in each of two tasks", [Task(n=50, chances=flips(0.2, 0.1), size=5)] * 2),
)  # fmt: skip
# Without a difference in truth: what a verdict must not be fooled by.
EQUAL = (
    of_tasks("tasks of unlike flips", unlike(0.5)),
    of_tasks("rare flips", [Task(n=200, chances=flips(0.005, 0.005)) for _ in range(12)]),
    of_tasks("partial credit", partial_credit(0.0)),
    Scenario(name="five samples a question", draw=several_samples(1.0), truth=0.0),
    of_tasks("pairs", clustered(2, 0.5)),
    of_tasks("fives", clustered(5, 0.5)),
)


def table(studies: int) -> str:
    """Coverage, then false verdicts, as Markdown."""
    lines = ["| intervals of | hold the truth |", "|---|--:|"]
    lines += [f"| {one.name} | {one.coverage(studies):.1%} |" for one in (*SCENARIOS, *SPARSE)]
    lines += ["", "| equal cells with | called lower or higher |", "|---|--:|"]
    lines += [f"| {one.name} | {one.false_verdicts(studies):.1%} |" for one in EQUAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 4000))
