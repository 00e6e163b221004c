"""Evidence: a feature asked for, what its counter saw, and whether the two agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ktbench.spec.features import BY_NAME, FEATURES, FeatureValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One feature of one turn. `seen` is None where the engine keeps no such counter."""

    feature: str
    asked: FeatureValue
    counter: str
    seen: int | None

    @property
    def wanted(self) -> bool:
        """Whether the feature was asked to be on."""
        return bool(self.asked)

    @property
    def honest(self) -> bool:
        """A wanted feature must be seen at work; an unwanted one must not be."""
        if self.seen is None:
            return not self.wanted
        return (self.seen > 0) == self.wanted

    def __str__(self) -> str:
        seen = "not counted" if self.seen is None else f"{self.seen:,}"
        return f"{BY_NAME[self.feature].tag(True)}: {self.counter} {seen}, asked {'on' if self.wanted else 'off'}"


def collect(asked: Mapping[str, FeatureValue], counted: Mapping[str, int]) -> tuple[Evidence, ...]:
    """Evidence for every feature: `asked` by feature name, `counted` by counter name over the timed work alone."""
    return tuple(
        Evidence(feature=f.name, asked=asked[f.name], counter=f.counter, seen=counted.get(f.counter)) for f in FEATURES
    )


def dishonest(evidence: tuple[Evidence, ...]) -> str:
    """Why this evidence contradicts what was asked; empty when it does not."""
    return "; ".join(str(e) for e in evidence if not e.honest)
