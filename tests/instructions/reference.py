"""The counts that a file of each group keeps, and what a change of them means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from ktbench.files import write_whole

FOLDER = Path(__file__).parent / "reference"
SHOWN, MOST_GROWTH = 0.001, 0.005  # of the recorded count


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Instructions by call, of a binary that `compiler` made; `machine` is what decides which kernels they run."""

    compiler: str
    machine: list[str] = field(default_factory=list)
    calls: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A call whose count is another than the recorded one; None where it was not recorded, or is not there any more."""

    name: str
    recorded: int | None
    counted: int | None

    @property
    def growth(self) -> float | None:
        """As a part of the recorded count; None without two counts."""
        return None if self.recorded is None or self.counted is None else self.counted / self.recorded - 1

    @property
    def is_shown(self) -> bool:
        """Whether it is large enough to be of interest."""
        return self.growth is None or abs(self.growth) > SHOWN

    @property
    def is_too_large(self) -> bool:
        """Whether the call executes more than it may."""
        return self.growth is not None and self.growth > MOST_GROWTH

    def __str__(self) -> str:
        recorded, counted = ("–" if n is None else f"{n:,}" for n in (self.recorded, self.counted))
        growth = "–" if self.growth is None else f"{self.growth:+.2%}"
        return f"{self.name:<42} {recorded:>13} {counted:>13} {growth:>9}{'  too large' if self.is_too_large else ''}"


def changes(recorded: Mapping[str, int], counted: Mapping[str, int]) -> Iterator[Change]:
    """Every call whose count differs, in the order of both."""
    for name in dict.fromkeys([*recorded, *counted]):
        if recorded.get(name) != counted.get(name):
            yield Change(name=name, recorded=recorded.get(name), counted=counted.get(name))


def not_judged(recorded: Counts, counted: Counts) -> str:
    """Why growth says nothing about a change of the sources, in a line; empty where it does."""
    if recorded.compiler != counted.compiler:
        return f"recorded with {recorded.compiler}, built with {counted.compiler}: differences are not judged"
    if recorded.machine != counted.machine:
        return f"recorded where steps choose from {', '.join(recorded.machine)}: differences are not judged"
    return ""


def read(group: str, folder: Path = FOLDER) -> Counts | None:
    """The recorded counts of a group; None where there are none."""
    path = folder / f"{group}.yaml"
    return Counts(**yaml.safe_load(path.read_text())) if path.exists() else None


def write(group: str, counts: Counts, folder: Path = FOLDER) -> None:
    """Record the counts of a group in the place of others."""
    write_whole(folder / f"{group}.yaml", yaml.safe_dump(asdict(counts), sort_keys=False, width=120))
