"""Questions whose score changed between two systems that answered the same ones, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Score of one question: before the change and after it.
Pair = tuple[float, float]


def pairs_of(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Pair, ...]:
    """Scores of the questions that both have, by question, in the order of `before`."""
    return tuple((score, after[question]) for question, score in before.items() if question in after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flips:
    """How many questions score lower and how many higher than before: right to wrong, and wrong to right."""

    lost: int
    gained: int

    @property
    def p(self) -> float:
        """Exact McNemar, two-sided: how likely as uneven a split is where losing and gaining are equally likely.

        min(1, 2 P(Binomial(lost + gained, 1/2) <= min(lost, gained))), the mid-p correction not applied. Source:
        McNemar, Psychometrika 12 (1947) 153; Agresti, Categorical Data Analysis (2013), section 11.1. Of scores between
        0 and 1 it is the sign test, of which McNemar's is a case.
        """
        changed, fewer = self.lost + self.gained, min(self.lost, self.gained)
        ways = tail = 1
        for k in range(fewer):
            ways = ways * (changed - k) // (k + 1)
            tail += ways
        return min(1.0, 2 * tail / (1 << changed))


def flips_of(pairs: Sequence[Pair]) -> Flips:
    """Flips between the two scores of each question."""
    return Flips(
        lost=sum(after < before for before, after in pairs), gained=sum(after > before for before, after in pairs)
    )
