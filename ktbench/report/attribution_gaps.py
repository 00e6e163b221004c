"""What an attribution lacks, and why: its total, features, cells, shares in percent."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.attribution_grid import Grid
from ktbench.results.contrasts import Contrast
from ktbench.results.row import Row
from ktbench.spec.features import FEATURES


def no_total(grid: Grid, features: Sequence[str]) -> str:
    """Why there is no speed-up of all `features`; empty where there is."""
    if not grid.base.timed:
        return f"{grid.base.label} is {_ending(grid.base)}"
    if not features:
        return f"no arm beside {grid.base.label} has a speed-up"
    if frozenset(features) in grid.speedups:
        return ""
    whole = grid.rows.get(frozenset(features))
    together = ", ".join(features)
    return f"{together}: no cell has them all" if whole is None else f"{whole.label} is {_ending(whole)}"


def no_timed(grid: Grid, feature: str) -> str:
    """How the cell with the fewest features beside this one ended."""
    return _ending(min((row for key, row in grid.rows.items() if feature in key), key=lambda row: len(_on(row))))


def _on(row: Row) -> list[str]:
    return [feature.name for feature in FEATURES if row.features[feature.name] != feature.off]


def left_out(grid: Grid, features: Sequence[str]) -> dict[str, str]:
    """By label how each cell of some of `features` ended that has no speed-up, so that no order passes it."""
    gaps = (row for key, row in grid.rows.items() if key not in grid.speedups and key < frozenset(features))
    return {row.label: _ending(row) for row in gaps}


def _ending(row: Row) -> str:
    if row.timed:
        return f"without a speed-up: {row.missing['speedup']}"
    return f"{row.outcome or 'not measured'}: {row.why}"


def no_part(grid: Grid, total: Contrast) -> str:
    """Why nothing has a share in percent of the `total`; empty where it is sure not to be nothing.

    Fewer than six rounds have an interval that misses 1 too often, and one round has none. A simulated speed-up is that
    of one step.
    """
    whole = grid.value(total)
    if whole is not None and not grid.base.simulated and not whole.sound:
        return f"{whole.n} round{'' if whole.n == 1 else 's'} cannot tell the speed-up from none, 6 are needed"
    return "the speed-up may be none: its interval holds 1" if whole is None or whole.low <= 1 <= whole.high else ""
