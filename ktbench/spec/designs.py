"""Designs of a sweep: which combinations of a list of features are its arms, and which are impossible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME, FeatureValue, features_label, parse_features

DesignKind = Literal["ladder", "leave_one_out", "factorial"]

MOST_FEATURES = 6  # 64 combinations


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """An arm that a design would have and that no machine can run, and why."""

    arm: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """Arms made of `features` on top of `baseline`, each in the words of labels: `+v`, `deferral=3`, `+v+d` as one.

    ladder: one more at a time, in their order. leave_one_out: none, all, and all without each. factorial: every
    combination. One that `EngineSpec` refuses (+d without +v or +m, deferral with skipping) is dropped; what only this
    machine or this work rules out stays an arm, and its row says why it could not run. Raises ValueError in one line
    for an unknown feature, one that is there twice, too many of them, and features that cannot all be on together.
    """

    kind: DesignKind
    features: tuple[str, ...]
    baseline: str = "base"

    def __post_init__(self) -> None:
        if not self.features:
            raise ValueError(f"sweep.design={self.kind}: needs sweep.features, such as [+v,+d]")
        seen = dict.fromkeys(_on("sweep.baseline", self.baseline), self.baseline)
        for feature in self.features:
            found = _on("sweep.features", feature)
            if not found:
                raise ValueError(f"sweep.features: {feature!r} turns nothing on")
            if twice := [name for name in found if name in seen]:
                raise ValueError(
                    f"sweep.features: {feature!r} and {seen[twice[0]]!r} both set {BY_NAME[twice[0]].title}"
                )
            seen |= dict.fromkeys(found, feature)
        if self.kind == "factorial" and len(self.features) > MOST_FEATURES:
            raise ValueError(
                f"sweep.features: a factorial of {len(self.features)} has {2 ** len(self.features)} combinations, "
                f"allowed are {MOST_FEATURES} features; take fewer, or sweep.design=leave_one_out"
            )
        if why := self._refusal(self.features):
            raise ValueError(f"sweep.features: they cannot all be on together: {why}")

    @property
    def arms(self) -> tuple[str, ...]:
        """Labels of the possible combinations, the baseline first."""
        return tuple(self._label(chosen) for chosen in self._combinations() if not self._refusal(chosen))

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The impossible combinations, in the order of the design."""
        found = ((self._label(chosen), self._refusal(chosen)) for chosen in self._combinations())
        return tuple(Dropped(arm=label, why=why) for label, why in found if why)

    def _combinations(self) -> Iterator[tuple[str, ...]]:
        count = len(self.features)
        if self.kind == "ladder":
            yield from (self.features[:n] for n in range(count + 1))
        elif self.kind == "factorial":
            yield from (chosen for n in range(count + 1) for chosen in combinations(self.features, n))
        else:
            ones = [tuple(one for one in self.features if one != left) for left in self.features]
            yield from dict.fromkeys([(), self.features, *ones])

    def _label(self, chosen: Sequence[str]) -> str:
        return features_label(self._values(chosen)) if chosen else self.baseline

    def _values(self, chosen: Sequence[str]) -> dict[str, FeatureValue]:
        values = parse_features(self.baseline)
        for feature in chosen:
            values |= _on("sweep.features", feature)
        return values

    def _refusal(self, chosen: Sequence[str]) -> str:
        """Why no engine has the combination; empty where it can be built."""
        try:
            EngineSpec(**self._values(chosen))  # type: ignore[arg-type]
        except ValueError as error:
            return str(error)
        return ""


def _on(where: str, label: str) -> dict[str, FeatureValue]:
    """Features that a label turns on, by name. Raises ValueError, headed by `where`, for an unknown word."""
    try:
        values = parse_features(label)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return {name: value for name, value in values.items() if value != BY_NAME[name].off}
