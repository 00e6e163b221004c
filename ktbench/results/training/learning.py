"""What the trainings of an arm learned: losses and scores over seeds, and what sets them apart from the baseline's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ktbench.results.row import Row
from ktbench.results.scores import Estimate, weighted_mean
from ktbench.results.settings import Setting, group_by
from ktbench.results.usage import Spread
from ktbench.spec.record import HeldOut, Learning, Record

SEED = "workload.seed"
Metric = Literal["last_loss", "held_out_loss", "exact"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The mean of a metric over seeds with its 95 % interval over them, before the first step too where it is known.

    `difference` is the mean of the differences to the baseline's at the same seeds, None without such.
    """

    before: float | None
    after: Estimate
    difference: Estimate | None

    @property
    def is_apart(self) -> bool:
        """Whether the whole interval of the difference lies on one side of 0."""
        found = self.difference
        return (
            found is not None and found.low is not None and found.high is not None and not found.low <= 0 <= found.high
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """An arm at equal settings but for the seed. `rows` are its cells, `trainings` those that ended well, by seed.

    `losses` has for each step the mean loss over seeds with the least and the most, `apart` the differences to the
    baseline's at the same seeds, empty without such. `scores` is empty where no training ended well; `why` then says
    why.
    """

    shown: str
    is_baseline: bool
    settings: Mapping[str, Setting]
    rows: tuple[Row, ...]
    trainings: Mapping[int, Record]
    losses: tuple[Spread, ...]
    apart: tuple[Spread, ...]
    scores: Mapping[Metric, Score]
    why: str


def learned_of(rows: Sequence[Row]) -> tuple[Learned, ...]:
    """The arms of rows of one part that learned from examples, in the order of the plan; controls are left out."""
    learning = [row for row in rows if row.role == "arm" and row.spec.workload.examples is not None]
    found = []
    for group in group_by(((row.part, *_but_the_seed(row).items()), row) for row in learning).values():
        base = _trainings(row for row in group if row.is_baseline)
        found += [_learned(mine, base) for mine in group_by((row.shown, row) for row in group).values()]
    return tuple(found)


def _but_the_seed(row: Row) -> dict[str, Setting]:
    return {key: value for key, value in row.settings.items() if key != SEED}


def _trainings(rows: Iterable[Row]) -> dict[int, Record]:
    """The last round of each seed: a training is repeated exactly."""
    return {row.spec.workload.seed: row.records[-1] for row in rows if row.learning is not None}


def _learned(rows: Sequence[Row], base: Mapping[int, Record]) -> Learned:
    mine = _trainings(rows)
    before = {} if rows[0].is_baseline else {seed: base[seed] for seed in mine if seed in base}
    return Learned(
        shown=rows[0].shown,
        is_baseline=rows[0].is_baseline,
        settings=_but_the_seed(rows[0]),
        rows=tuple(rows),
        trainings=mine,
        losses=_spreads([losses_of(record) for record in mine.values()]),
        apart=_spreads([_apart(losses_of(record), losses_of(mine[seed])) for seed, record in before.items()]),
        scores={metric: _score(metric, mine, before) for metric in METRICS} if mine else {},
        why="; ".join(dict.fromkeys(row.ending for row in rows if row.learning is None)),
    )


def losses_of(record: Record) -> tuple[float, ...]:
    """The loss of each step in nats a token."""
    assert record.parts is not None
    return record.parts.losses


def _apart(base: Sequence[float], own: Sequence[float]) -> list[float]:
    return [one - other for other, one in zip(base, own, strict=True)]


def _spreads(curves: Sequence[Sequence[float]]) -> tuple[Spread, ...]:
    return tuple(Spread(low=min(step), mid=fmean(step), high=max(step)) for step in zip(*curves, strict=True))


def _learning(record: Record) -> Learning:
    assert record.learning is not None
    return record.learning


def _held_out(value: Callable[[HeldOut], float]) -> tuple[Callable[[Record], float], Callable[[Record], float]]:
    return lambda record: value(_learning(record).before), lambda record: value(_learning(record).after)


# Before the first step, where that is known, and after the last.
METRICS: Mapping[Metric, tuple[Callable[[Record], float] | None, Callable[[Record], float]]] = {
    "last_loss": (None, lambda record: losses_of(record)[-1]),
    "held_out_loss": _held_out(lambda found: found.loss),
    "exact": _held_out(lambda found: found.exact),
}


def values_of(metric: Metric, trainings: Mapping[int, Record]) -> dict[int, float]:
    """A metric after the last step, by seed."""
    _, after = METRICS[metric]
    return {seed: after(record) for seed, record in trainings.items()}


def _score(metric: Metric, mine: Mapping[int, Record], base: Mapping[int, Record]) -> Score:
    """Seeds are what was drawn: each counts once."""
    first, _ = METRICS[metric]
    after, before = values_of(metric, mine), values_of(metric, base)
    differences = [after[seed] - before[seed] for seed in before]
    found = _mean([*after.values()])
    return Score(
        before=None if first is None else fmean(map(first, mine.values())),
        after=found.mapped(lambda end: min(max(end, 0.0), 1.0)) if metric == "exact" else found,
        difference=_mean(differences) if differences else None,
    )


def _mean(values: Sequence[float]) -> Estimate:
    return weighted_mean(values, [1.0] * len(values))


def seeds_of(learned: Sequence[Learned]) -> Iterator[int]:
    """Seeds of all trainings, each once, in ascending order."""
    yield from sorted({seed for one in learned for seed in one.trainings})
