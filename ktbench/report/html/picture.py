"""What a figure of the page is made of: panels beside each other below a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.report.html.plot import Plot

LOOKS = 10  # shades of arms, the first as in the printed figures; then they begin again


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A plot with its title and what its axes are."""

    plot: Plot
    title: str = ""
    x_name: str = ""
    y_name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure: `legend` has a look and a name for each arm, `wide` panels take a line of their own."""

    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...] = ()
    wide: bool = False


def looks_of(names: Sequence[str]) -> dict[str, str]:
    """A look for each name; the first is kept for base, so that other arms look alike with and without it."""
    base = next((name for name in names if name.startswith("base")), None)
    others = [name for name in dict.fromkeys(names) if name != base]
    return {name: f"s{0 if name == base else others.index(name) % (LOOKS - 1) + 1}" for name in names}
