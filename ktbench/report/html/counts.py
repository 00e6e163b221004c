"""Answers over how many experts are deferred or skipped: heat maps, ours and published, and the averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ktbench.report.accuracy.cells import cell_at_count, lines_by_place, published_cell
from ktbench.report.accuracy.counts import (
    AVERAGE_NAME,
    FEATURES,
    Sequel,
    groups_by_name,
    rows_by_count,
    sequels_of,
    subject_title,
)
from ktbench.report.html.answers import card_of
from ktbench.report.html.cards import Dealt
from ktbench.report.html.heat import LEGEND, Carded, heat_plot
from ktbench.report.html.picture import Panel, Picture, looks_of
from ktbench.report.html.plot import WIDE, Plot, Spot
from ktbench.report.html.scale import Scale, linear_around
from ktbench.report.paper_panels import tasks_named
from ktbench.results.accuracy import AccuracyRow, parts_of_average
from ktbench.results.answers import AVERAGE, SubjectKind
from ktbench.results.paper import PaperLine

HEAT = "First the score in %, then its change relative to that in %"
_HEIGHT = 220.0


def counts_pictures(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], dealt: Dealt) -> Iterator[Picture]:
    """Heat maps of each group and of the published `lines`, then the averages with their intervals."""
    ours = [
        _ours(group, feature, name, dealt)
        for name, group in groups_by_name(rows).items()
        for feature in FEATURES
        if len(rows_by_count(group, feature)) > 1
    ]
    numbers = {line.id: dealt.finer["published", line.id] for line in lines}
    panels = [*ours, *(published_panels(lines, numbers) if lines else [])]
    if panels:
        yield heat_picture(
            "Scores and their relative change", panels, f"{HEAT}{'; bold: beyond noise' if ours else ''}."
        )
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


def heat_picture(title: str, panels: Sequence[Panel], caption: str) -> Picture:
    """Heat maps below the legend of their shades."""
    return Picture(title=title, caption=caption, panels=tuple(panels), legend=LEGEND, wide=len(panels) == 1, roomy=True)


def published_panels(lines: Sequence[PaperLine], cards: Mapping[str, int]) -> list[Panel]:
    """A panel for each feature: those of `lines` that are about it, or about neither."""
    return [_published(lines, feature, cards) for feature in FEATURES]


def _ours(rows: Sequence[AccuracyRow], feature: str, where: str, dealt: Dealt) -> Panel:
    mine = rows_by_count(rows, feature)
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    counts = sorted(mine)
    cells = {
        (x, y): (cell_at_count(mine[count].result(name, what), count), card_of(mine[count], name, what, dealt))
        for x, count in enumerate(counts)
        for y, (name, what) in enumerate(places)
    }
    return _panel([subject_title(name) for name, _ in places], counts, cells, feature, where)


def _published(lines: Sequence[PaperLine], feature: str, cards: Mapping[str, int]) -> Panel:
    counts, found = lines_by_place(lines, feature)
    cells = {place: (published_cell(line), cards[line.id]) for place, line in found.items()}
    return _panel(tasks_named(lines), counts, cells, feature, f"published ({lines[0].model})")


def _panel(
    names: Sequence[str], counts: Sequence[int], cells: Mapping[tuple[int, int], Carded], feature: str, where: str
) -> Panel:
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
    x = Scale(low=counts[0] - 0.3, high=counts[-1] + 0.3, start=0.0, end=WIDE)
    y = linear_around(ends, _HEIGHT, 0.0)
    plot.levels(y, zero="reference")
    plot.names_below(x, counts)
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
