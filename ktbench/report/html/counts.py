"""Answers over how many experts are deferred or skipped: heat maps, ours and published, and the averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ktbench.report.accuracy.counts import (
    AVERAGE_NAME,
    FEATURES,
    Sequel,
    count_of,
    groups_by_name,
    rows_by_count,
    sequels_of,
    subject_title,
)
from ktbench.report.accuracy.results import Result
from ktbench.report.accuracy.rows import AccuracyRow, parts_of_average
from ktbench.report.accuracy.subjects import AVERAGE, SubjectKind
from ktbench.report.accuracy.text import signed
from ktbench.report.html.answers import card_of
from ktbench.report.html.cards import Dealt
from ktbench.report.html.heat import LEGEND, HeatCell, heat_plot
from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, Plot, Spot
from ktbench.report.html.scale import Scale, tick_name
from ktbench.report.paper import PaperLine
from ktbench.report.paper_panels import tasks_named
from ktbench.report.text import DASH
from ktbench.stats.scores import ScoreVerdict

_HEIGHT = 220.0
_Cells = dict[tuple[int, int], HeatCell]


def counts_pictures(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], dealt: Dealt) -> Iterator[Picture]:
    """Heat maps of each group and of the published `lines`, then the averages with their intervals."""
    panels = [
        _ours(group, feature, name, dealt)
        for name, group in groups_by_name(rows).items()
        for feature in FEATURES
        if len(rows_by_count(group, feature)) > 1
    ]
    numbers = {line.id: dealt.finer["published", line.id] for line in lines}
    panels += published_panels(lines, numbers) if lines else []
    if panels:
        yield heat_picture("Scores and their relative change", panels)
    if sequels := sequels_of(rows, lines):
        yield _averages(sequels, {**dealt.cells, **numbers})


def all_counted(rows: Sequence[AccuracyRow]) -> bool:
    """Whether every cell has a place among the pictures."""
    found = {
        row.row.cell
        for group in groups_by_name(rows).values()
        for feature in FEATURES
        if len(by_count := rows_by_count(group, feature)) > 1
        for row in by_count.values()
    }
    return all(row.row.cell in found for row in rows)


def heat_picture(title: str, panels: Sequence[Panel]) -> Picture:
    """Heat maps below the legend of their shades."""
    caption = "First the score in %, then its change relative to that in %; bold: beyond noise."
    return Picture(title=title, caption=caption, panels=tuple(panels), legend=LEGEND, wide=len(panels) == 1, roomy=True)


def published_panels(lines: Sequence[PaperLine], cards: Mapping[str, int]) -> list[Panel]:
    """A panel for each feature: those of `lines` that are about it, or about neither."""
    return [_published(lines, feature, cards) for feature in FEATURES]


def _ours(rows: Sequence[AccuracyRow], feature: str, where: str, dealt: Dealt) -> Panel:
    mine = rows_by_count(rows, feature)
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    counts, cells = sorted(mine), _Cells()
    for x, count in enumerate(counts):
        for y, (name, what) in enumerate(places):
            card = card_of(mine[count], name, what, dealt)
            cells[x, y] = (_change if count else _score)(mine[count].result(name, what), card)
    return _panel([subject_title(name) for name, _ in places], counts, cells, feature, where)


def _score(result: Result | None, card: int) -> HeatCell:
    score = None if result is None else result.score
    return HeatCell(text=DASH if score is None else f"{100 * score.mid:.1f}", card=card)


def _change(result: Result | None, card: int) -> HeatCell:
    if result is None or result.change is None or result.change.relative is None:
        return HeatCell(text=DASH, card=card)
    change = result.change.relative.mid
    sure = result.change.verdict is not ScoreVerdict.NONE_SHOWN
    return HeatCell(text=signed(change), card=card, change=100 * change, sure=sure)


def _published(lines: Sequence[PaperLine], feature: str, cards: Mapping[str, int]) -> Panel:
    (other,) = FEATURES.keys() - {feature}
    mine = [line for line in lines if count_of(line, other) == 0 and line.published is not None]
    tasks = list(dict.fromkeys(line.what for line in lines))
    counts, cells = sorted({count_of(line, feature) for line in mine}), _Cells()
    for line in mine:
        value, is_change = line.published or 0.0, line.metric == "relative %"
        text = f"{value:+.1f}" if is_change else f"{value:g}"
        where = counts.index(count_of(line, feature)), tasks.index(line.what)
        cells[where] = HeatCell(text=text, card=cards[line.id], change=value if is_change else None)
    return _panel(tasks_named(lines), counts, cells, feature, f"published ({lines[0].model})")


def _panel(names: Sequence[str], counts: Sequence[int], cells: _Cells, feature: str, where: str) -> Panel:
    columns = ["score" if count == 0 else str(count) for count in counts]
    return Panel(
        plot=heat_plot(names, columns, cells, f"{feature}, {where}"),
        title=f"{feature.capitalize()}, {where}",
        x_name=f"experts {FEATURES[feature]} of a token",
    )


def _averages(sequels: Sequence[Sequel], cards: Mapping[str, int]) -> Picture:
    """All of the changes, and those of deferral at their own scale."""
    looks = looks_of([one.name for one in sequels])
    near = [one for one in sequels if one.feature == "deferral"]
    shown = [("whole", sequels)] if len(near) in (0, len(sequels)) else [("whole", sequels), ("deferral alone", near)]
    panels = tuple(
        Panel(
            plot=_curves(mine, looks, cards, title),
            title=title if len(shown) > 1 else "",
            x_name="experts deferred or skipped of a token",
            y_name=f"change of the {AVERAGE_NAME.lower()}, %",
        )
        for title, mine in shown
    )
    legend = tuple((look + (" ring" if name in _theirs(sequels) else ""), name) for name, look in looks.items())
    caption = "Change of the average score relative to the baseline; bands: paired 95 % intervals; rings: published."
    return Picture(title="Averages", caption=caption, panels=panels, legend=legend, wide=len(panels) == 1)


def _theirs(sequels: Sequence[Sequel]) -> set[str]:
    return {one.name for one in sequels if one.published}


def _curves(sequels: Sequence[Sequel], looks: Mapping[str, str], cards: Mapping[str, int], title: str) -> Plot:
    plot = Plot(height=_HEIGHT, label=f"averages, {title}; arrow keys go from point to point")
    counts = sorted({count for one in sequels for count, *_ in one.points})
    ends = [end for one in sequels for _, *values in one.points for end in values if end is not None]
    room = 0.08 * (max(ends) - min(ends)) or 1.0
    x = Scale(low=counts[0] - 0.3, high=counts[-1] + 0.3, start=0.0, end=WIDE)
    y = Scale(low=min(ends) - room, high=max(ends) + room, start=_HEIGHT, end=0.0)
    for tick in y.ticks():
        plot.lines("grid" if tick else "reference", [[(0.0, y(tick)), (WIDE, y(tick))]])
        plot.left(y(tick), tick_name(tick))
    for count in counts:
        plot.below(x(count), str(count))
    for one in sequels:
        _draw(plot, one, looks[one.name], x, y)
        plot.spots += [
            Spot(x=x(count), y=y(value), card=cards[id_])
            for (count, value, *_), id_ in zip(one.points, one.ids, strict=True)
        ]
    return plot


def _draw(plot: Plot, one: Sequel, look: str, x: Scale, y: Scale) -> None:
    known = [(x(n), y(low), y(high)) for n, _, low, high in one.points if low is not None and high is not None]
    middle = [(x(count), y(value)) for count, value, *_ in one.points]
    if len(known) > 1:
        lows, highs = [(at, low) for at, low, _ in known], [(at, high) for at, _, high in known]
        plot.area(f"band {look}", [*highs, *reversed(lows)])
    plot.lines(f"reach {look}", [[(at, low), (at, high)] for at, low, high in known])
    plot.lines(f"curve {look}{' dashed' if one.published else ''}", [middle])
    plot.dots(f"dot {look}", middle)
    if one.published:
        plot.dots("hole", middle)
