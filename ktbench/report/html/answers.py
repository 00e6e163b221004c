"""What answers were worth, as points with intervals: the change of each cell's scores against the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.accuracy.counts import subject_title
from ktbench.report.accuracy_table import settings_shown
from ktbench.report.html.cards import Dealt
from ktbench.report.html.forest import Mark, forest, linear, tallest
from ktbench.report.html.picture import Panel, Picture, in_pages
from ktbench.report.text import change_text, score_interval_text
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.row import place
from ktbench.results.scores import Estimate, ScoreVerdict

_LOOKS = {ScoreVerdict.LOWER: "s4", ScoreVerdict.HIGHER: "s6", ScoreVerdict.NONE_SHOWN: "s0"}
_LEGEND = {
    ScoreVerdict.LOWER: "lower, beyond noise",
    ScoreVerdict.HIGHER: "higher, beyond noise",
    ScoreVerdict.NONE_SHOWN: "no difference shown",
}


_Subject = tuple[str, SubjectKind]


def answers_pictures(rows: Sequence[AccuracyRow], dealt: Dealt, *, parts: bool) -> Iterator[Picture]:
    """The changes of the average and, with `parts`, of its categories or tasks; scores where nothing is compared.

    Nothing where no cell has what would be drawn; the notes of the table say why.
    """
    if any(result.change for row in rows for result in row.results):
        yield from _changes(rows, dealt, _subjects(rows, parts=parts))
    elif any((average := row.result()) and average.score for row in rows):
        yield _scores(rows, dealt)


def _subjects(rows: Sequence[AccuracyRow], *, parts: bool) -> list[_Subject]:
    kind, names = parts_of_average(rows)
    return [(AVERAGE, "average"), *((name, kind) for name in (names if parts else ()))]


def _changes(rows: Sequence[AccuracyRow], dealt: Dealt, subjects: Sequence[_Subject]) -> Iterator[Picture]:
    settings = settings_shown(rows)
    marked = {
        (subject, kind): [mark for row in rows if (mark := _change_mark(row, subject, kind, settings, dealt))]
        for subject, kind in subjects
    }
    found = {subject: marks for subject, marks in marked.items() if marks}
    every = [mark for marks in found.values() for mark in marks]
    if not every:
        return
    x = linear(every, reference=0.0)
    panels = tuple(
        Panel(
            plot=forest(marks, x, f"changes of {subject}", 0.0),
            title="" if [*found] == [(AVERAGE, "average")] else subject if kind == "task" else subject_title(subject),
            x_name="points of the score, against the baseline",
        )
        for (subject, kind), every_mark in found.items()
        for marks in in_pages(every_mark, tallest)
    )
    looks = {mark.look for mark in every}
    legend = tuple((_LOOKS[verdict], name) for verdict, name in _LEGEND.items() if _LOOKS[verdict] in looks)
    caption = f"{_of([*found])}{_untold(rows, subjects, settings)}"
    yield Picture(title="Change of the score", caption=caption, panels=panels, legend=legend, wide=len(panels) == 1)


def _of(drawn: Sequence[_Subject]) -> str:
    """What changes, by the subjects that have any."""
    kinds = [kind for _, kind in drawn]
    if kinds == ["average"]:
        return "Paired change of the average score, with its 95 % interval."
    of = "average score and of its parts" if "average" in kinds else f"scores by {kinds[0]}"
    return f"Paired change of the {of}, at one scale, each with its 95 % interval."


def _untold(rows: Sequence[AccuracyRow], subjects: Sequence[_Subject], settings: Sequence[str]) -> str:
    """Which arms are not drawn, or not among all `subjects`."""
    lacking = {place(row.row, settings): _unchanged(row, subjects) for row in rows if not row.is_baseline}
    said = [
        name if len(names) == len(subjects) else f"{name} ({', '.join(names)})"
        for name, names in lacking.items()
        if names
    ]
    return f" Without a change: {'; '.join(said)}; the notes say why." if said else ""


def _unchanged(row: AccuracyRow, subjects: Sequence[_Subject]) -> list[str]:
    return [name for name, kind in subjects if not ((result := row.result(name, kind)) and result.change)]


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
