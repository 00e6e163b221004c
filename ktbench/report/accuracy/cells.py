"""What stands in the cells of heat maps of scores and relative changes, for print and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.counts import FEATURES, count_of
from ktbench.report.text import DASH, score_text, signed
from ktbench.results.accuracy import AccuracyRow, Result
from ktbench.results.paper import PaperLine
from ktbench.results.scores import ScoreVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """`change` in percent shades it; None stands for a score or for nothing. A `sure` one is beyond noise."""

    text: str
    change: float | None = None
    sure: bool = False


def cell_at_count(result: Result | None, count: int) -> HeatCell:
    """The score where no expert is deferred or skipped, else the change."""
    if count:
        return _change(result, DASH)
    return HeatCell(text=DASH if result is None or result.score is None else f"{100 * result.score.mid:.1f}")


def score_of_formats(row: AccuracyRow) -> HeatCell:
    """The average score with its standard error."""
    result = row.result()
    return HeatCell(text=score_text(None if result is None else result.score))


def change_of_formats(row: AccuracyRow) -> HeatCell:
    """The change of the average, and which cell is the baseline."""
    return _change(row.result(), "baseline" if row.is_baseline else DASH)


def _change(result: Result | None, otherwise: str) -> HeatCell:
    if result is None or result.change is None or result.change.relative is None:
        return HeatCell(text=otherwise)
    mid, sure = result.change.relative.mid, result.change.verdict is not ScoreVerdict.NONE_SHOWN
    return HeatCell(text=signed(mid), change=100 * mid, sure=sure)


def published_cell(line: PaperLine) -> HeatCell:
    """A line that has a published number: a score, or the change relative to it."""
    assert line.published is not None
    is_change = line.metric == "relative %"
    text = signed(line.published / 100) if is_change else f"{line.published:g}"
    return HeatCell(text=text, change=line.published if is_change else None)


def lines_by_place(lines: Sequence[PaperLine], feature: str) -> tuple[list[int], dict[tuple[int, int], PaperLine]]:
    """Numbers of experts of the columns, and by column and task the published lines about a feature, or about none."""
    (other,) = FEATURES.keys() - {feature}
    mine = [line for line in lines if line.published is not None and count_of(line, other) == 0]
    tasks = list(dict.fromkeys(line.what for line in lines))
    counts = sorted({count_of(line, feature) for line in mine})
    return counts, {(counts.index(count_of(line, feature)), tasks.index(line.what)): line for line in mine}
