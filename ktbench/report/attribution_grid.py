"""The arms of one attribution by what they have beside their baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.results.contrasts import Combination, Contrast, estimate, factor_of
from ktbench.results.intervals import Interval, exact
from ktbench.results.row import Row
from ktbench.results.rows import judged_values
from ktbench.spec.features import FEATURES


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The arms of a group by what they have beside the baseline: all, and the speed-ups by round of those timed.

    `features` come in the order of the table of features.
    """

    base: Row
    rows: dict[Combination, Row]
    features: tuple[str, ...]
    speedups: dict[Combination, dict[int, float]]

    def value(self, contrast: Contrast | None) -> Interval | None:
        """A contrast as a factor on speed; of simulated steps without an interval."""
        found = None if contrast is None else estimate(contrast, self.speedups)
        return None if found is None else self.shown(factor_of(found))

    def shown(self, value: Interval) -> Interval:
        """Simulated steps are the same every time."""
        return exact(value.mid) if self.base.simulated else value


def grid_of(group: Sequence[Row]) -> Grid | None:
    """The arms of a group of rows: those of its baseline's system and precision; None where it has no baseline.

    What arms only ever have together counts as one feature.
    """
    base = next((row for row in group if row.is_baseline), None)
    if base is None:
        return None
    tags = {row.cell: _tags(row, base) for row in group if row.role == "arm" and _is_alike(row, base)}
    bundles = _bundles([found for found in tags.values() if found])
    rows = {
        frozenset(bundles[tag] for tag in tags[row.cell] or ()): row
        for row in group
        if row is not base and tags.get(row.cell)
    }
    speedups = {key: _by_round(row, row.speedup, group) for key, row in rows.items() if row.speedup is not None}
    return Grid(base=base, rows=rows, features=tuple(dict.fromkeys(bundles.values())), speedups=speedups)


def _by_round(row: Row, speedup: Interval, group: Sequence[Row]) -> dict[int, float]:
    """A simulated step is the same on any machine, so that its only round is compared wherever it was simulated."""
    if row.simulated:
        return {0: speedup.mid}
    return {number: ratio for number, ratio in judged_values(row, group).items() if ratio is not None}


def _is_alike(row: Row, base: Row) -> bool:
    return (row.spec.system, row.spec.precision) == (base.spec.system, base.spec.precision)


def _tags(row: Row, base: Row) -> tuple[str, ...] | None:
    """What a row has beside the baseline; None where it lacks something that the baseline has."""
    differing = [f for f in FEATURES if row.features[f.name] != base.features[f.name]]
    if any(base.features[feature.name] != feature.off for feature in differing):
        return None
    return tuple(feature.tag(row.features[feature.name]) for feature in differing)


def _bundles(combinations: Sequence[Sequence[str]]) -> dict[str, str]:
    """The name of each tag's player: its own, or that of the tags which are only ever there together."""
    known = sorted({tag for tags in combinations for tag in tags}, key=_table_order)
    holders = {tag: tuple(n for n, tags in enumerate(combinations) if tag in tags) for tag in known}
    return {tag: _joined([other for other in known if holders[other] == holders[tag]]) for tag in known}


def _table_order(tag: str) -> tuple[int, str]:
    name = tag.removeprefix("+").partition("=")[0]
    return next(n for n, feature in enumerate(FEATURES) if name in (feature.letter, feature.name)), tag


def _joined(tags: Sequence[str]) -> str:
    letters = "".join(tag for tag in tags if tag.startswith("+"))
    return " ".join(filter(None, [letters, *(tag for tag in tags if not tag.startswith("+"))]))
