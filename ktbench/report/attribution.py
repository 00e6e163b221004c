"""Whose the speed-up of a group of rows is: shares of its features and their interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ktbench.report.attribution_gaps import left_out, no_part, no_timed, no_total
from ktbench.report.attribution_grid import Grid, grid_of
from ktbench.results.contrasts import (
    Contrast,
    Interaction,
    first_step,
    interaction,
    last_step,
    order_free,
    share_of,
    total_of,
    why_no_interaction,
)
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row, groups_of
from ktbench.results.settings import Setting
from ktbench.spec.sweep import FigureKind

ATTRIBUTED: tuple[FigureKind, ...] = ("waterfall", "interactions")
_APART = "in no round had all cells that it is formed of the cores in the same place"


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one feature is worth, as factors on speed. `part` is its share of the log speed-up, from 0 to 1.

    `factor` is its order-free share, `first` what it adds to the baseline alone, `last` what it adds to all others;
    `missing` says why one is None.
    """

    feature: str
    factor: Interval | None
    part: Interval | None
    first: Interval | None
    last: Interval | None
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """By which factor two features together beside `context` beat the product of each alone; None and `why` else."""

    one: str
    other: str
    context: tuple[str, ...] = ()
    factor: Interval | None = None
    why: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether cells with both, each and neither were measured beside the same features, if never comparably."""
        return self.factor is not None or self.why == _APART

    @property
    def is_sure(self) -> bool:
        """Whether the interval has its ends on the side of the value; simulated values have none."""
        factor = self.factor
        return factor is not None and not is_exact(factor) and factor.sound and not factor.low <= 1 <= factor.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """Shares of one group of rows, whose common `settings` tell it from others.

    `total` is the speed-up of all `features` over `baseline`, `whole` the label of the row that has them, over `orders`
    possible orders (0: shares have none, `last` alone is known). `aside` says by feature why it is not among them,
    `left_out` by label why a cell is not. Where `total` is None `why` says so, and there are no shares; where no
    baseline was planned there are no `features` either.
    """

    baseline: str
    settings: dict[str, Setting]
    features: tuple[str, ...]
    whole: str
    simulated: bool
    orders: int
    total: Interval | None
    shares: tuple[Share, ...] = ()
    pairs: tuple[Pair, ...] = ()
    aside: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    why: str = ""


def attributions_of(rows: Sequence[Row]) -> tuple[Attribution, ...]:
    """One attribution for each group of the rows of a part.

    Its features are those that arms of our own have beside the baseline's, at the baseline's precision, in the order of
    the only order in which they were added, else in that of the table of features; what arms only ever have together
    counts as one. A feature that no timed arm has is set aside, with the reason.
    """
    return tuple(_attributed(group) for group in groups_of(rows))


def _attributed(group: Sequence[Row]) -> Attribution:
    grid = grid_of(group)
    return _without_baseline(group[0]) if grid is None else _of_grid(grid)


def _without_baseline(row: Row) -> Attribution:
    """Of a group that `row` is of."""
    return Attribution(
        baseline=row.baseline,
        settings=row.settings,
        features=(),
        whole="",
        simulated=row.simulated,
        orders=0,
        total=None,
        why=row.missing["speedup"],
    )


def _of_grid(grid: Grid) -> Attribution:
    timed = set().union(*grid.speedups)
    features = tuple(feature for feature in grid.features if feature in timed)
    found = order_free(features, grid.speedups)
    if found and found.orders == 1:
        features = tuple(sorted(features, key=lambda feature: _place(found.shares[feature])))
    whole = grid.rows.get(frozenset(features))
    why = no_total(grid, features)
    known = Attribution(
        baseline=grid.base.label,
        settings=grid.base.settings,
        features=features,
        whole=" ".join(features) if whole is None else whole.label,
        simulated=grid.base.simulated,
        orders=found.orders if found else 0,
        total=None if why else grid.value(total_of(features)),
        aside={feature: no_timed(grid, feature) for feature in grid.features if feature not in timed},
        left_out=left_out(grid, features),
        why=why,
    )
    if why:
        return known
    shares = tuple(_share(grid, feature, features, found.shares if found else {}) for feature in features)
    pairs = [(one, other) for n, one in enumerate(features) for other in features[n + 1 :]]
    return replace(known, shares=shares, pairs=tuple(_pair(grid, *pair, features) for pair in pairs))


def _place(step: Contrast) -> int:
    """As which feature the only order adds the one whose share is this step."""
    return min(len(combination) for combination, weight in step.items() if weight > 0)


def _share(grid: Grid, feature: str, features: Sequence[str], shares: dict[str, Contrast]) -> Share:
    mine, total = shares.get(feature), total_of(features)
    factor = grid.value(mine)
    why_no_part = no_part(grid, total)
    part = share_of(mine, total, grid.speedups) if mine is not None and not why_no_part else None
    first, last = first_step(feature, grid.speedups), last_step(feature, features, grid.speedups)
    values = {"factor": factor, "first": grid.value(first), "last": grid.value(last)}
    unmeasured = {
        "factor": "" if mine is not None else "no order adds the features one by one through measured cells",
        "first": "" if first is not None else f"it was not measured with {grid.base.label} alone",
        "last": "" if last is not None else "all others were not measured without it",
    }
    missing = {name: unmeasured[name] or _APART for name, value in values.items() if value is None}
    if part is None:
        missing["part"] = missing.get("factor") or why_no_part or _APART
    return Share(feature=feature, part=None if part is None else grid.shown(part), missing=missing, **values)


def _pair(grid: Grid, one: str, other: str, features: Sequence[str]) -> Pair:
    found: Interaction | None = interaction(one, other, features, grid.speedups)
    if found is None:
        return Pair(one=one, other=other, why=why_no_interaction(one, other, grid.speedups))
    value = grid.value(found.contrast)
    why = "" if value else _APART
    return Pair(one=one, other=other, context=found.context, factor=value, why=why)
