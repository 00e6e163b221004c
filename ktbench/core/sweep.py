"""What a sweep varies, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ktbench.core.features import parse_features


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """Arms are feature labels in the order of the table; `axes` maps spec keys to the values each arm is run at.

    With `control` the baseline rides along a second time under its own name.
    """

    name: str = "run"
    title: str = ""
    arms: tuple[str, ...] = ()
    baseline: str = "base"
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    control: bool = True

    def __post_init__(self) -> None:
        for arm in self.arms:
            parse_features(arm)
        if self.arms and self.baseline not in self.arms:
            raise ValueError(f"sweep.baseline={self.baseline!r} is none of sweep.arms={list(self.arms)}")
        for key, values in self.axes.items():
            if not values:
                raise ValueError(f"sweep.axes.{key} has no values")
