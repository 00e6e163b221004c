"""What weights take in their format, and where cells lie in the plane of speed and error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ktbench.results.accuracy import AccuracyRow, Standing, bounds_of, standings
from ktbench.results.intervals import Interval
from ktbench.results.row import Row, stored_bits
from ktbench.results.scores import Estimate
from ktbench.results.usage import Spread, spread
from ktbench.spec.peers import OURS
from ktbench.spec.record import KL
from ktbench.spec.weights import Precision


def format_of(row: Row) -> Precision:
    """That of the routed experts; base runs bf16 whatever a spec says."""
    spec = row.spec
    return spec.precision if spec.engine.fused or spec.system != OURS else "bf16"


# What is above the axis of speeds: nats from bf16 or, without answers, the bits of a weight.
Quantity = Literal["kl", "bits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatPoint:
    """A timed cell. `is_best`: none of its phase is both as fast and as low, by the middles of the intervals.

    `standing` is what intervals allow to say of that.
    """

    row: Row
    speed: Interval
    height: Spread
    is_best: bool
    standing: Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatPlane:
    """`points` have a height, `references` are timed and differ from the baseline in nothing."""

    quantity: Quantity
    points: tuple[FormatPoint, ...]
    references: tuple[Row, ...]


def plane_of_answers(rows: Sequence[AccuracyRow]) -> FormatPlane:
    """By the divergence from the baseline, per token."""
    arms = [row for row in rows if row.row.role == "arm"]
    found = {row.row.cell: kl for row in arms if (kl := kl_of(row)) is not None}
    return _plane("kl", [row.row for row in arms], {cell: _spread(kl) for cell, kl in found.items()})


def plane_of_rows(rows: Sequence[Row]) -> FormatPlane:
    """By the bits of a weight.

    The error of a check is no measure of a format: it compares with float32 on the weights as they are stored.
    """
    arms = [row for row in rows if row.role == "arm"]
    return _plane("bits", arms, {row.cell: spread([stored_bits(row)]) for row in arms})


def kl_of(row: AccuracyRow) -> Estimate | None:
    """The divergence in the phase that is timed, else in any; None where none was measured."""
    found = {one.task: one.value for one in row.measures if one.metric == KL}
    return found.get(row.row.spec.workload.phase) or next(iter(found.values()), None)


def _spread(value: Estimate) -> Spread:
    """With the ends of its interval; a single window has none."""
    low, high = (value.mid if end is None else end for end in (value.low, value.high))
    return Spread(low=low, mid=value.mid, high=high)


def _plane(quantity: Quantity, rows: Iterable[Row], heights: Mapping[str, Spread]) -> FormatPlane:
    """On a logarithmic axis there is no place for 0, which is that of the baseline and of what equals it."""
    timed = [(row, row.tokens_per_s, heights[row.cell]) for row in rows if row.tokens_per_s and row.cell in heights]
    places = [(row.spec.workload.phase, speed.mid, height.mid) for row, speed, height in timed]
    found = _standings(timed)
    points = (
        FormatPoint(
            row=row, speed=speed, height=height, is_best=not _is_beaten(place, places), standing=found[row.cell]
        )
        for (row, speed, height), place in zip(timed, places, strict=True)
        if height.mid > 0
    )
    return FormatPlane(
        quantity=quantity,
        points=tuple(points),
        references=tuple(row for row, _, height in timed if height.mid == 0),
    )


def _standings(timed: Sequence[tuple[Row, Interval, Spread]]) -> dict[str, Standing]:
    """By cells, each among those of its phase; the less of the height, the better."""
    found: dict[str, Standing] = {}
    for phase in dict.fromkeys(row.spec.workload.phase for row, *_ in timed):
        among = [one for one in timed if one[0].spec.workload.phase == phase]
        places = standings([(bounds_of(speed), _less_is_better(height)) for _, speed, height in among])
        found |= {row.cell: place for (row, *_), place in zip(among, places, strict=True)}
    return found


def _less_is_better(value: Spread) -> Spread:
    return Spread(low=-value.high, mid=-value.mid, high=-value.low)


Place = tuple[str, float, float]


def _is_beaten(one: Place, others: Sequence[Place]) -> bool:
    phase, speed, height = one
    return any(other != one and other[0] == phase and other[1] >= speed and other[2] <= height for other in others)
