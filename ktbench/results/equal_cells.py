"""How often equal cells are called faster or slower than each other: the machine's own rate of false verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ktbench.results.intervals import Interval, interval_of
from ktbench.results.row import Row, groups_of
from ktbench.results.settings import group_by
from ktbench.results.speedups import Verdict, comparable, judge, paired_interval, paired_ratios
from ktbench.results.strata import wilson_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class FalseVerdicts:
    """Verdicts on pairs of equal cells of an `arm`, empty of all arms together, and how many are false.

    Each is formed over `loads` loads of the weights; `called` of `comparisons` are faster or slower. Pairs share cells,
    so that they tell at least as much as `independent` comparisons, and seldom more.
    """

    arm: str
    loads: int
    called: int
    comparisons: int
    independent: int

    @property
    def share(self) -> float:
        """Of the comparisons that are called faster or slower."""
        return self.called / self.comparisons

    @property
    def ends(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share at the number of independent comparisons.

        The mean over all pairs varies no more than one over pairs without a common cell: Hoeffding, JASA 58 (1963) 13,
        section 5.
        """
        return wilson_interval(self.share * self.independent, self.independent)


def false_verdicts(rows: Sequence[Row]) -> tuple[FalseVerdicts, ...]:
    """Of the rows of a run's part: by arm and together, inside one load of the weights and over all of them.

    Nothing of cells without a copy. Verdicts are those of `judge` without a control. Inside one load only blocks of six
    rounds or more count, and over several only six or more, as nothing else has a verdict. Arms of one worker share its
    loads, so that together they count for as many independent comparisons as one of them.
    """
    groups = [list(_of_group(group)) for group in groups_of(rows)]
    found = group_by(((one.arm, one.loads), one) for group in groups for one in group)
    by_arm = [_sum(held, sum(one.independent for one in held)) for held in found.values()]
    if len({one.arm for one in by_arm}) < 2:
        return tuple(by_arm)
    return (*by_arm, *_of_all(groups))


def _of_all(groups: Sequence[Sequence[FalseVerdicts]]) -> Iterator[FalseVerdicts]:
    for loads in dict.fromkeys(one.loads for group in groups for one in group):
        held = [[one for one in group if one.loads == loads] for group in groups]
        independent = sum(max((one.independent for one in group), default=0) for group in held)
        yield replace(_sum([one for group in held for one in group], independent), arm="")


def _sum(held: Sequence[FalseVerdicts], independent: int) -> FalseVerdicts:
    return replace(
        held[0],
        called=sum(one.called for one in held),
        comparisons=sum(one.comparisons for one in held),
        independent=independent,
    )


def _of_group(group: Sequence[Row]) -> Iterator[FalseVerdicts]:
    """Of every arm of a group that has copies: all pairs of cells with weights of their own."""
    for cells in group_by((row.spec_id, row) for row in group if row.timed and not row.simulated).values():
        alone = [*{row.copy: row for row in reversed(cells)}.values()]  # a control has the weights of its baseline
        if len(alone) > 1:
            yield from _of_cells(alone)


def _of_cells(cells: Sequence[Row]) -> Iterator[FalseVerdicts]:
    measure, arm = cells[0].spec.measure, min(cells, key=lambda row: row.copy).label
    inside, over = list[Interval | None](), list[Interval | None]()
    for one, other in combinations(cells, 2):
        times = comparable(one.trial_times, other.trial_times)
        ratios = group_by((measure.load_of(number), ratio) for number, ratio in paired_ratios(*times).items())
        inside += map(interval_of, ratios.values())
        over += [paired_interval(*times, measure.block_of)] if measure.reloads else []
    loads = len({measure.load_of(number) for row in cells for number in row.trial_times})
    apart = len(cells) // 2
    yield from _counted(arm, 1, inside, apart * loads)
    yield from _counted(arm, loads, over, apart)


def _counted(arm: str, loads: int, intervals: Sequence[Interval | None], independent: int) -> Iterator[FalseVerdicts]:
    verdicts = [judge(interval) for interval in intervals if interval and interval.sound]
    if verdicts:
        called = sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts)
        least = min(independent, len(verdicts))
        yield FalseVerdicts(arm=arm, loads=loads, called=called, comparisons=len(verdicts), independent=least)
