"""Attribution of the speed-up of a group of rows to its features, and their interactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ktbench.results.contrasts import (
    Combination,
    Contrast,
    Interaction,
    estimate,
    first_step,
    interaction,
    last_step,
    order_free,
    share_of,
    total_of,
    why_no_interaction,
)
from ktbench.results.intervals import Interval, exact, is_exact
from ktbench.results.row import Row, baseline_of, groups_of
from ktbench.results.rows import is_same_system, judged_values
from ktbench.results.settings import Setting
from ktbench.spec.features import FEATURES, feature_tag, features_on
from ktbench.spec.sweep import FigureKind

ATTRIBUTED: tuple[FigureKind, ...] = ("waterfall", "interactions")
_APART = "in no round had all cells that it is formed of the cores in the same place"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureAttribution:
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
class FeaturePair:
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
    shares: tuple[FeatureAttribution, ...] = ()
    pairs: tuple[FeaturePair, ...] = ()
    aside: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    why: str = ""


def attributions_of(rows: Sequence[Row]) -> tuple[Attribution, ...]:
    """One attribution for each group of the rows of a part.

    Its features are those that arms of our own have beside the baseline's, at the baseline's precision, in the order of
    the only order in which they were added, else in that of the table of features; what arms only ever have together
    counts as one. A feature that no timed arm has is set aside, with the reason.
    """
    grids = ((group, grid_of(group)) for group in groups_of(rows))
    return tuple(_without_baseline(group[0]) if grid is None else _of_grid(grid) for group, grid in grids)


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


def _of_grid(grid: FeatureGrid) -> Attribution:
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


def _share(grid: FeatureGrid, feature: str, features: Sequence[str], shares: dict[str, Contrast]) -> FeatureAttribution:
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
    return FeatureAttribution(
        feature=feature, part=None if part is None else grid.shown(part), missing=missing, **values
    )


def _pair(grid: FeatureGrid, one: str, other: str, features: Sequence[str]) -> FeaturePair:
    found: Interaction | None = interaction(one, other, features, grid.speedups)
    if found is None:
        return FeaturePair(one=one, other=other, why=why_no_interaction(one, other, grid.speedups))
    value = grid.value(found.contrast)
    why = "" if value else _APART
    return FeaturePair(one=one, other=other, context=found.context, factor=value, why=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureGrid:
    """The arms of a group by what they have beside the baseline: all, and the speed-ups of those timed, by round or,
    where weights are loaded anew, by block of rounds.

    `features` come in the order of the table of features.
    """

    base: Row
    rows: dict[Combination, Row]
    features: tuple[str, ...]
    speedups: dict[Combination, dict[int, float]]

    def value(self, contrast: Contrast | None) -> Interval | None:
        """A contrast as a factor on speed; of simulated steps without an interval."""
        found = None if contrast is None else estimate(contrast, self.speedups)
        return None if found is None else self.shown(found.exponential())

    def shown(self, value: Interval) -> Interval:
        """Simulated steps are the same every time."""
        return exact(value.mid) if self.base.simulated else value


def grid_of(group: Sequence[Row]) -> FeatureGrid | None:
    """The arms of a group of rows: those of its baseline's system and precision; None where it has no baseline.

    What arms only ever have together counts as one feature.
    """
    base = baseline_of(group)
    if base is None:
        return None
    tags = {row.cell: _tags(row, base) for row in group if row.role == "arm" and is_same_system(row, base)}
    bundles = _bundles([found for found in tags.values() if found])
    rows = {
        frozenset(bundles[tag] for tag in tags[row.cell] or ()): row
        for row in group
        if row is not base and tags.get(row.cell)
    }
    speedups = {key: _by_round(row, row.speedup, group) for key, row in rows.items() if row.speedup is not None}
    return FeatureGrid(base=base, rows=rows, features=tuple(dict.fromkeys(bundles.values())), speedups=speedups)


def _by_round(row: Row, speedup: Interval, group: Sequence[Row]) -> dict[int, float]:
    """A simulated step is the same on any machine, so that its only round is compared wherever it was simulated."""
    if row.simulated:
        return {0: speedup.mid}
    return {number: ratio for number, ratio in judged_values(row, group).items() if ratio is not None}


def _tags(row: Row, base: Row) -> tuple[str, ...] | None:
    """What a row has beside the baseline; None where it lacks something that the baseline has."""
    mine, others = features_on(row.features), features_on(base.features)
    if any(mine.get(name) != value for name, value in others.items()):
        return None
    return tuple(feature_tag(name, value) for name, value in mine.items() if name not in others)


def _bundles(combinations: Sequence[Sequence[str]]) -> dict[str, str]:
    """The name of each tag's player: its own, or that of the tags which are only ever there together."""
    known = sorted({tag for tags in combinations for tag in tags}, key=_table_order)
    holders = {tag: tuple(n for n, tags in enumerate(combinations) if tag in tags) for tag in known}
    return {tag: _joined([other for other in known if holders[other] == holders[tag]]) for tag in known}


def _table_order(tag: str) -> tuple[int, str]:
    name = tag.removeprefix("+").partition("=")[0]
    known = (n for n, feature in enumerate(FEATURES) if name in (feature.letter, feature.name))
    return next(known, len(FEATURES)), tag


def _joined(tags: Sequence[str]) -> str:
    letters = "".join(tag for tag in tags if tag.startswith("+"))
    return " ".join(filter(None, [letters, *(tag for tag in tags if not tag.startswith("+"))]))


def no_total(grid: FeatureGrid, features: Sequence[str]) -> str:
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


def no_timed(grid: FeatureGrid, feature: str) -> str:
    """How the cell with the fewest features beside this one ended."""
    return _ending(min((row for key, row in grid.rows.items() if feature in key), key=lambda row: len(_on(row))))


def _on(row: Row) -> list[str]:
    return list(features_on(row.features))


def left_out(grid: FeatureGrid, features: Sequence[str]) -> dict[str, str]:
    """By label how each cell of some of `features` ended that has no speed-up, so that no order passes it."""
    gaps = (row for key, row in grid.rows.items() if key not in grid.speedups and key < frozenset(features))
    return {row.label: _ending(row) for row in gaps}


def _ending(row: Row) -> str:
    return f"without a speed-up: {row.missing['speedup']}" if row.timed else row.ending


def no_part(grid: FeatureGrid, total: Contrast) -> str:
    """Why nothing has a share in percent of the `total`; empty where it is sure not to be nothing.

    Fewer than six rounds have an interval that misses 1 too often, and one round has none. A simulated speed-up is that
    of one step.
    """
    whole = grid.value(total)
    if whole is not None and not grid.base.simulated and not whole.sound:
        unit = grid.base.spec.measure.unit
        return f"{whole.n} {unit}{'' if whole.n == 1 else 's'} cannot tell the speed-up from none, 6 are needed"
    return "the speed-up may be none: its interval holds 1" if whole is None or whole.low <= 1 <= whole.high else ""
