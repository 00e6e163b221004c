"""Average score and its change over the format of the experts and of the device role, as a heat map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ktbench.report.accuracy.formats import by_formats, formats_of
from ktbench.report.accuracy.results import Result
from ktbench.report.accuracy.rows import AccuracyRow, parts_of_average
from ktbench.report.accuracy.subjects import AVERAGE, SubjectKind
from ktbench.report.accuracy.table import settings_shown
from ktbench.report.accuracy.text import score_text, signed
from ktbench.report.figures.curves import REFERENCE
from ktbench.report.figures.paper_panels import tasks_named
from ktbench.report.figures.sheet import (
    LEGEND_LINE_IN,
    PAGE_IN,
    RIGHT_IN,
    TOP_IN,
    axes_at,
    draw_legend,
    legend_lines,
    sheet,
)
from ktbench.report.figures.text_metrics import INK, LABEL_PT, TICK_PT, VALUE_PT, line_in, width_in, wrapped
from ktbench.report.paper_lines import PaperLine
from ktbench.report.row import groups_of
from ktbench.report.text import DASH, number
from ktbench.results.stats.scores import ScoreVerdict
from ktbench.spec.arms import arm_features
from ktbench.spec.features import BY_NAME

FEATURES = {"deferral": "deferred", "skipping": "skipped"}
AVERAGE_NAME = "Average"

# Number of experts, change in percent, the ends of its interval or None.
SequelPoint = tuple[int, float, float | None, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequel:
    """Points in order of the number of experts; `ids` are of each the key of its cell, or the id of its number."""

    name: str
    feature: str
    points: tuple[SequelPoint, ...]
    ids: tuple[str, ...]
    published: bool = False


def groups_by_name(rows: Sequence[AccuracyRow]) -> dict[str, tuple[AccuracyRow, ...]]:
    """Rows that differ in their arms alone, by what the group is called: the model where there is one group."""
    settings, by_cell = settings_shown(rows), {row.row.cell: row for row in rows}
    found: dict[str, tuple[AccuracyRow, ...]] = {}
    for group in groups_of([row.row for row in rows]):
        words = [f"{key.rpartition('.')[2]} {group[0].settings.get(key)}" for key in settings]
        name = ", ".join(words) or f"{rows[0].provenance or 'here'} ({group[0].spec.model.name})"
        found[name] = tuple(by_cell[row.cell] for row in group)
    return found


def subject_title(name: str) -> str:
    """`Data analysis`."""
    return name.replace("_", " ").capitalize()


def count_of(line: PaperLine, feature: str) -> int:
    """How many experts the arm of a line defers or skips."""
    value = arm_features(line.arm)[feature]
    assert isinstance(value, int), f"{line.arm}: {feature}={value} is no number"
    return value


def rows_by_count(rows: Sequence[AccuracyRow], feature: str) -> dict[int, AccuracyRow]:
    """Rows by how many experts they defer or skip; those that do the other, or leave the number open, left out."""
    (other,) = FEATURES.keys() - {feature}
    found: dict[int, AccuracyRow] = {}
    for row in rows:
        count = row.row.features[feature]
        if not row.row.features[other] and isinstance(count, int):
            found.setdefault(count, row)
    return found


def sequels_of(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[Sequel]:
    """The change of the average over the number of experts, for each feature: of each group, and as published."""
    groups = groups_by_name(rows)
    ours = [
        _ours(group, feature, f", {name}" if len(groups) > 1 else "")
        for name, group in groups.items()
        for feature in FEATURES
    ]
    theirs = [_theirs(lines, feature) for feature in FEATURES] if lines else []
    return [sequel for sequel in (*ours, *theirs) if len(sequel.points) > 1]


def _ours(rows: Sequence[AccuracyRow], feature: str, suffix: str) -> Sequel:
    found: list[tuple[SequelPoint, str]] = []
    for count, row in sorted(rows_by_count(rows, feature).items()):
        result = row.result()
        if row.is_baseline:
            found.append(((count, 0.0, None, None), row.row.cell))
        elif result and result.change and result.change.relative:
            change = result.change.relative
            found.append(((count, 100 * change.mid, _percent(change.low), _percent(change.high)), row.row.cell))
    return _sequel(f"{feature}{suffix}", feature, found)


def _sequel(name: str, feature: str, found: Sequence[tuple[SequelPoint, str]], *, published: bool = False) -> Sequel:
    points, ids = tuple(point for point, _ in found), tuple(id_ for _, id_ in found)
    return Sequel(name=name, feature=feature, points=points, ids=ids, published=published)


def _percent(end: float | None) -> float | None:
    return None if end is None else 100 * end


def _theirs(lines: Sequence[PaperLine], feature: str) -> Sequel:
    (other,) = FEATURES.keys() - {feature}
    average = [line for line in lines if f" {AVERAGE_NAME}" in line.what and count_of(line, other) == 0]
    values = [
        (count_of(line, feature), line.published if line.metric == "relative %" else 0.0, line.id) for line in average
    ]
    kept: list[tuple[SequelPoint, str]] = sorted(
        ((count, value, None, None), id_) for count, value, id_ in values if value is not None
    )
    return _sequel(f"{feature}, published ({lines[0].model})", feature, kept, published=True)


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


CELL_IN, HEAD_IN, FOOT_IN, GAP_IN = 0.16, 0.18, 0.34, 0.12
_LOSSES = LinearSegmentedColormap.from_list("losses", ["#ffffff", "#a0bfdb", "#1d3f5e"])
_DARK = -60.0  # per cent from which letters are white
_SCORE = "#eeeeee"


def draw_cells(axes: Axes, cells: Mapping[tuple[int, int], HeatCell], columns: Sequence[str], lines: int) -> None:
    """Fill axes with cells by their column and line, `columns` named below and `lines` of them below each other.

    Letters of what is beyond noise are bold.
    """
    for (x, y), cell in cells.items():
        change = cell.change
        face = _SCORE if change is None else _LOSSES(min(max(-change, 0.0), 100.0) / 100)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=0.8))
        color = "white" if change is not None and change < _DARK else INK
        weight = "bold" if cell.sure else "normal"
        axes.text(x, y, cell.text, fontsize=TICK_PT, ha="center", va="center_baseline", color=color, weight=weight)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.tick_params(length=0, labelsize=TICK_PT, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_feature(
    axes: Axes,
    cells: Mapping[tuple[int, int], HeatCell],
    counts: Sequence[int],
    lines: int,
    feature: str,
    where: str = "",
) -> None:
    """A panel over how many experts a feature defers or skips: the score at none, where that is shown, and the changes.

    `where` says where the numbers are from, in figures that have some from several places.
    """
    draw_cells(axes, cells, ["score" if count == 0 else str(count) for count in counts or [0]], lines)
    axes.set_xlabel(f"experts {FEATURES[feature]} of a token", fontsize=LABEL_PT, labelpad=1)
    title = f"{feature.capitalize()}, {where}" if where else BY_NAME[feature].title
    axes.set_title(f"{title}: relative change, %", fontsize=LABEL_PT, pad=3)


_SHADES = ("#1d3f5e", "#5d93c4", "#7d7d7d", "#35688f", "#9dbdda", "#555555")
_MARKERS = {"deferral": "o", "skipping": "s"}
_ROOM = 0.08


def sequel_handles(sequels: Sequence[Sequel]) -> list[Artist]:
    """Entries of a legend."""
    return [Line2D([], [], label=one.name, **_look(one, n)) for n, one in enumerate(sequels)]


def draw_sequels(axes: Axes, sequels: Sequence[Sequel], *, near: bool) -> None:
    """Draw curves with bands and whiskers; `near`: at the scale of those of deferral alone."""
    axes.axhline(0, color=REFERENCE, linewidth=0.5, zorder=1)
    for n, one in enumerate(sequels):
        _draw(axes, one, _look(one, n))
    counts = sorted({count for one in sequels for count, *_ in one.points})
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xticks(counts)
    axes.set_ylim(_limits([one for one in sequels if one.feature == "deferral" or not near] or sequels))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
    axes.set_xlabel("experts deferred or skipped of a token", fontsize=LABEL_PT, labelpad=1.5)
    axes.set_ylabel("change of the average, %", fontsize=LABEL_PT, labelpad=2)
    axes.set_title("at the scale of deferral" if near else "whole", fontsize=LABEL_PT, pad=2)


def _draw(axes: Axes, one: Sequel, look: dict[str, Any]) -> None:
    axes.plot([count for count, *_ in one.points], [value for _, value, *_ in one.points], zorder=3, **look)
    known = [
        (count, value, low, high) for count, value, low, high in one.points if low is not None and high is not None
    ]
    if not known:
        return
    counts, values, lows, highs = zip(*known, strict=True)
    axes.fill_between(counts, lows, highs, color=look["color"], alpha=0.14, linewidth=0, zorder=1.5)
    reach = [
        [v - low for v, low in zip(values, lows, strict=True)],
        [h - v for v, h in zip(values, highs, strict=True)],
    ]
    axes.errorbar(
        counts, values, reach, linestyle="", color=look["color"], elinewidth=0.7, capsize=1.6, capthick=0.7, zorder=2.5
    )


def _limits(sequels: Sequence[Sequel]) -> tuple[float, float]:
    ends = [end for one in sequels for _, *values in one.points for end in values if end is not None]
    low, high = min(ends), max(ends)
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _look(one: Sequel, number: int) -> dict[str, Any]:
    shade = REFERENCE if one.published else _SHADES[number % len(_SHADES)]
    return {
        "color": shade,
        "linewidth": 0.8 if one.published else 1.0,
        "linestyle": (0, (3, 2)) if one.published else "-",
        "marker": _MARKERS[one.feature],
        "markersize": 3.0,
        "markerfacecolor": "white" if one.published else shade,
        "markeredgewidth": 0.7,
    }


_TEXT_IN = 4.1


def draw_heat(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A panel for deferred and one for skipped experts: tasks below each other, their number from left to right.

    The first column is the score without either, the others the change relative to it in percent.
    """
    tasks = tasks_named(lines)
    left = max(width_in(task, TICK_PT) for task in tasks) + 2 * RIGHT_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    tall = len(tasks) * CELL_IN
    figure = sheet(PAGE_IN, TOP_IN + HEAD_IN + tall + FOOT_IN, caption)
    for n, feature in enumerate(FEATURES):
        axes = axes_at(figure, left + n * (each + GAP_IN), TOP_IN + HEAD_IN, each, tall)
        draw_published_heat(axes, lines, feature)
        axes.set_yticks(range(len(tasks)), tasks if n == 0 else [""] * len(tasks))
    return figure


def draw_published_heat(axes: Axes, lines: Sequence[PaperLine], feature: str, where: str = "") -> None:
    """The panel of a feature: those of `lines` that are about it, or about neither."""
    counts, found = lines_by_place(lines, feature)
    cells = {place: published_cell(line) for place, line in found.items()}
    draw_feature(axes, cells, counts, len(tasks_named(lines)), feature, where)


def draw_list(lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """One dot for each score beside the words of its conditions."""
    shown = [line for line in lines if line.published is not None]
    texts = [wrapped(_words(line), TICK_PT, _TEXT_IN) for line in shown]
    heights = [(len(text) + 0.5) * line_in(TICK_PT) for text in texts]
    tall = sum(heights)
    figure = sheet(PAGE_IN, TOP_IN + tall + FOOT_IN, caption)
    left = _TEXT_IN + 2 * RIGHT_IN
    axes = axes_at(figure, left, TOP_IN, PAGE_IN - left - 3 * RIGHT_IN, tall)
    places = [sum(heights[:n]) + heights[n] / 2 for n in range(len(shown))]
    _draw_list(axes, shown, places, tall)
    axes.set_yticks(places, ["\n".join(text) for text in texts], ha="left")
    axes.tick_params(axis="y", pad=72 * (_TEXT_IN + RIGHT_IN / 2), length=0)
    return figure


def _draw_list(axes: Axes, lines: Sequence[PaperLine], places: Sequence[float], tall: float) -> None:
    values = [line.published or 0.0 for line in lines]
    axes.set_ylim(tall, 0)
    room = 0.15 * (max(values) - min(values)) or 1.0
    axes.set_xlim(min(values) - room, max(values) + 1.5 * room)
    axes.hlines(places, *axes.get_xlim(), color="#cccccc", linewidth=0.4, zorder=1)
    axes.plot(values, places, "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, zorder=3)
    for value, place in zip(values, places, strict=True):
        axes.annotate(
            number(value, 3), (value, place), xytext=(4, 0), textcoords="offset points", fontsize=VALUE_PT, va="center",
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4}, zorder=2,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=TICK_PT, width=0.6, pad=2)
    axes.set_xlabel(f"{lines[0].metric}, published", fontsize=LABEL_PT, labelpad=1.5)


def _words(line: PaperLine) -> str:
    return "; ".join(filter(None, (line.precision, line.what)))


_CURVES_IN, _ABOVE_IN, _TITLE_IN, _BELOW_IN, _MARGIN_IN = 1.5, 0.1, 0.15, 0.36, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A heat map: its lines from top to bottom, and who fills the panel of a feature."""

    names: tuple[str, ...]
    where: str
    rows: tuple[AccuracyRow, ...] = ()
    lines: tuple[PaperLine, ...] = ()

    @property
    def tall_in(self) -> float:
        return HEAD_IN + len(self.names) * CELL_IN + FOOT_IN

    def draw(self, axes: Axes, feature: str) -> None:
        if self.lines:
            draw_published_heat(axes, self.lines, feature, self.where)
        else:
            _draw_ours(axes, self.rows, feature, self.where)


def draw_deferral(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine], caption: Sequence[str]) -> Figure:
    """A heat map for each group of rows, that of the published `lines` where there are any, and the averages below."""
    blocks, sequels = _blocks(rows, lines), sequels_of(rows, lines)
    left = max(width_in(name, TICK_PT) for block in blocks for name in block.names) + 2 * RIGHT_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    heat_in = sum(block.tall_in for block in blocks)
    legend = legend_lines(sequel_handles(sequels), PAGE_IN - 2 * RIGHT_IN)
    above_in = _ABOVE_IN + len(legend) * LEGEND_LINE_IN + _TITLE_IN
    curves_in = above_in + _CURVES_IN + _BELOW_IN if sequels else 0.0
    figure = sheet(PAGE_IN, TOP_IN + heat_in + curves_in, caption)
    top = TOP_IN
    for block in blocks:
        for n, feature in enumerate(FEATURES):
            tall = len(block.names) * CELL_IN
            axes = axes_at(figure, left + n * (each + GAP_IN), top + HEAD_IN, each, tall)
            block.draw(axes, feature)
            axes.set_yticks(range(len(block.names)), block.names if n == 0 else [""] * len(block.names))
        top += block.tall_in
    if sequels:
        _draw_averages(figure, sequels, legend, top + _ABOVE_IN)
    return figure


def _draw_averages(figure: Figure, sequels: Sequence[Sequel], legend: Sequence[Sequence[Artist]], top: float) -> None:
    """All of the changes on the left, those of deferral at their own scale on the right."""
    draw_legend(figure, legend, top)
    each = PAGE_IN / 2 - _MARGIN_IN - RIGHT_IN
    for n, near in enumerate((False, True)):
        left = _MARGIN_IN + n * PAGE_IN / 2
        axes = axes_at(figure, left, top + len(legend) * LEGEND_LINE_IN + _TITLE_IN, each, _CURVES_IN)
        draw_sequels(axes, sequels, near=near)


def _blocks(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> list[_Block]:
    _, names = parts_of_average(rows)
    shown = (*(subject_title(name) for name in names), AVERAGE_NAME)
    groups = groups_by_name(rows)
    found = [_Block(names=shown, where=name, rows=group) for name, group in groups.items()]
    if lines:
        model = next(line.model for line in lines)
        found.append(_Block(names=tuple(tasks_named(lines)), where=f"published ({model})", lines=tuple(lines)))
    return found


def _draw_ours(axes: Axes, rows: Sequence[AccuracyRow], feature: str, where: str) -> None:
    mine = rows_by_count(rows, feature)
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    counts = sorted(mine)
    cells = {
        (x, y): cell_at_count(mine[count].result(name, what), count)
        for x, count in enumerate(counts)
        for y, (name, what) in enumerate(places)
    }
    draw_feature(axes, cells, counts, len(places), feature, where)


_FOOT_IN, _GAP_IN, _LABEL_IN = 0.36, 0.2, 0.16


def draw_precision(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Figure:
    """A panel of scores and one of relative changes, formats of the experts below each other."""
    experts, _ = formats_of(rows)
    left = max(width_in(name, TICK_PT) for name in experts) + 2 * RIGHT_IN + _LABEL_IN
    each = (PAGE_IN - left - RIGHT_IN - _GAP_IN) / 2
    tall = len(experts) * CELL_IN
    figure = sheet(PAGE_IN, TOP_IN + HEAD_IN + tall + _FOOT_IN, caption)
    for n, (title, cell) in enumerate(
        (("average score by format, %", score_of_formats), ("relative change by format, %", change_of_formats))
    ):
        axes = axes_at(figure, left + n * (each + _GAP_IN), TOP_IN + HEAD_IN, each, tall)
        _draw_precision(axes, rows, cell)
        axes.set_title(title, fontsize=LABEL_PT, pad=3)
        axes.set_xlabel("device role", fontsize=LABEL_PT, labelpad=1)
        axes.set_yticks(range(len(experts)), experts if n == 0 else [""] * len(experts))
        if n == 0:
            axes.set_ylabel("experts", fontsize=LABEL_PT, labelpad=2)
    return figure


def _draw_precision(axes: Axes, rows: Sequence[AccuracyRow], cell: Callable[[AccuracyRow], HeatCell]) -> None:
    experts, devices = formats_of(rows)
    places = {(devices.index(device), experts.index(name)): row for (name, device), row in by_formats(rows).items()}
    draw_cells(axes, {place: cell(row) for place, row in places.items()}, devices, len(experts))
