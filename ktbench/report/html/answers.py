"""What answers were worth, as points with intervals: the change of each cell's scores against the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.accuracy.counts import subject_title
from ktbench.report.accuracy.rows import AccuracyRow, parts_of_average
from ktbench.report.accuracy.subjects import AVERAGE, SubjectKind
from ktbench.report.accuracy.table import settings_shown
from ktbench.report.accuracy.text import change_text, score_interval_text
from ktbench.report.html.cards import Dealt
from ktbench.report.html.forest import Mark, forest, linear, tallest
from ktbench.report.html.picture import Panel, Picture, in_pages
from ktbench.report.row import place
from ktbench.stats.scores import Estimate, ScoreVerdict

_LOOKS = {ScoreVerdict.LOWER: "s4", ScoreVerdict.HIGHER: "s6", ScoreVerdict.NONE_SHOWN: "s0"}
_LEGEND = {
    ScoreVerdict.LOWER: "lower, beyond noise",
    ScoreVerdict.HIGHER: "higher, beyond noise",
    ScoreVerdict.NONE_SHOWN: "no difference shown",
}


def answers_pictures(rows: Sequence[AccuracyRow], dealt: Dealt, *, parts: bool) -> Iterator[Picture]:
    """The changes of the average and, with `parts`, of its categories or tasks; scores where nothing is compared."""
    if any(result.change for row in rows for result in row.results):
        yield from _changes(rows, dealt, parts=parts)
    elif any(result.score for row in rows for result in row.results):
        yield _scores(rows, dealt)


def _places(rows: Sequence[AccuracyRow], *, parts: bool) -> list[tuple[str, SubjectKind]]:
    kind, names = parts_of_average(rows)
    return [(AVERAGE, "average"), *((name, kind) for name in (names if parts else ()))]


def _changes(rows: Sequence[AccuracyRow], dealt: Dealt, *, parts: bool) -> Iterator[Picture]:
    settings = settings_shown(rows)
    found = {
        (subject, kind): [mark for row in rows if (mark := _change_mark(row, subject, kind, settings, dealt))]
        for subject, kind in _places(rows, parts=parts)
    }
    every = [mark for marks in found.values() for mark in marks]
    x = linear(every, reference=0.0)
    panels = tuple(
        Panel(
            plot=forest(marks, x, f"changes of {subject}", 0.0),
            title="" if len(found) == 1 else subject if kind == "task" else subject_title(subject),
            x_name="points of the score, against the baseline",
        )
        for (subject, kind), every_mark in found.items()
        for marks in in_pages(every_mark, tallest)
    )
    looks = {mark.look for mark in every}
    legend = tuple((_LOOKS[verdict], name) for verdict, name in _LEGEND.items() if _LOOKS[verdict] in looks)
    yield Picture(
        title="Change of the score", caption=_caption(rows, panels), panels=panels, legend=legend, wide=len(panels) == 1
    )


def _caption(rows: Sequence[AccuracyRow], panels: Sequence[Panel]) -> str:
    of = "average score and of its parts, at one scale" if len(panels) > 1 else "average score"
    untold = [row.row.shown for row in rows if not row.is_baseline and not any(one.change for one in row.results)]
    absent = f" Without a change: {', '.join(dict.fromkeys(untold))}; the notes say why." if untold else ""
    return f"Paired change of the {of}, with its 95 % interval.{absent}"


def _change_mark(
    row: AccuracyRow, subject: str, kind: SubjectKind, settings: Sequence[str], dealt: Dealt
) -> Mark | None:
    result = row.result(subject, kind)
    if result is None or result.change is None:
        return None
    mid, low, high = ends_of(result.change.difference, 100)
    return Mark(
        name=place(row.row, settings),
        text=change_text(result.change.difference),
        card=card_of(row, subject, kind, dealt),
        look=_LOOKS[result.change.verdict],
        mid=mid,
        low=low,
        high=high,
    )


def _scores(rows: Sequence[AccuracyRow], dealt: Dealt) -> Picture:
    settings, marks = settings_shown(rows), []
    for row in rows:
        result = row.result()
        if result is not None and result.score is not None:
            mid, low, high = ends_of(result.score, 100)
            text, card = score_interval_text(result.score), dealt.cells[row.row.cell]
            marks.append(Mark(name=place(row.row, settings), text=text, card=card, mid=mid, low=low, high=high))
    x = linear(marks)
    panels = tuple(
        Panel(plot=forest(some, x, "scores"), x_name="average score, %") for some in in_pages(marks, tallest)
    )
    caption = "Average score with its 95 % interval; there is nothing to compare it with."
    return Picture(title="Scores", caption=caption, panels=panels, wide=len(panels) == 1)


def card_of(row: AccuracyRow, subject: str, kind: SubjectKind, dealt: Dealt) -> int:
    """The card of a subject of a cell, of the average that of the cell."""
    return dealt.cells[row.row.cell] if kind == "average" else dealt.finer[row.row.cell, kind, subject]


def ends_of(value: Estimate, scale: float) -> tuple[float, float, float]:
    """The middle and the ends of the interval, the middle again where it has none."""
    low, high = (value.mid if end is None else end for end in (value.low, value.high))
    return scale * value.mid, scale * low, scale * high
