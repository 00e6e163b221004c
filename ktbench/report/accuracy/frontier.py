"""Speed against score: which cells are beaten by none in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.rows import AccuracyRow
from ktbench.results.intervals import Interval
from ktbench.results.scores import Estimate
from ktbench.results.settings import without_precision

UNTIMED = "was not timed"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """A cell that was timed and has a score. `is_pareto`: none is both as fast and as good, and better in one.

    Middles alone decide that; intervals may overlap.
    """

    row: AccuracyRow
    speed: Interval
    score: Estimate
    is_pareto: bool


def frontier_of(rows: Sequence[AccuracyRow]) -> dict[str, FrontierPoint]:
    """Points by cell key, in the order of `rows`; cells that lack a speed or a score are left out."""
    places = {
        row.row.cell: (row, speed, score) for row in rows if (speed := row.row.tokens_per_s) and (score := _score(row))
    }
    mids = [(speed.mid, score.mid) for _, speed, score in places.values()]
    return {
        cell: FrontierPoint(row=row, speed=speed, score=score, is_pareto=not _is_beaten((speed.mid, score.mid), mids))
        for cell, (row, speed, score) in places.items()
    }


def absence_of(row: AccuracyRow) -> str:
    """Why a cell is no point of the frontier; empty for one that is."""
    result = row.result()
    if result is None or result.score is None:
        return "has no score" if result is None else result.missing["score"]
    if row.row.timed:
        return ""
    return f"{row.row.outcome}: {row.row.why}" if row.row.outcome else UNTIMED


def _score(row: AccuracyRow) -> Estimate | None:
    result = row.result()
    return None if result is None else result.score


def _is_beaten(one: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    return any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in others)


def formats_text(row: AccuracyRow) -> str:
    """The format of the experts, and that of the device role where it is another."""
    spec = row.row.spec
    return spec.precision if spec.precision == spec.device_precision else f"{spec.precision}, {spec.device_precision}"


def words_of(points: Sequence[FrontierPoint]) -> tuple[list[str], str]:
    """What stands at each marker, and what it is the number of; nothing where it is no number.

    Words that all arms share are left out. Where one feature alone is left its number is enough, 0 without it.
    """
    labels = [without_precision(point.row.row.shown) for point in points]
    common = set.intersection(*(set(label.split()) for label in labels))
    short = [" ".join(word for word in label.split() if word not in common) for label in labels]
    keys = {text.partition("=")[0] for text in short if text}
    if len(keys) == 1 and all(text.count("=") == 1 for text in short if text):
        return [text.partition("=")[2] or "0" for text in short], keys.pop()
    return [text or label for text, label in zip(short, labels, strict=True)], ""
