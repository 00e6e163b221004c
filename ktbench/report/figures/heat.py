"""Heat maps of scores and relative changes by format and as published, as in KTransformers (SOSP'25), Fig. 13."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ktbench.report.figures.paper_panels import line_mark, tasks_named
from ktbench.report.figures.sheet import RIGHT_IN, Mark, PanelGrid, Sheet, mark
from ktbench.report.figures.text_metrics import INK, TICK_PT, width_in
from ktbench.report.text import score_text, signed
from ktbench.results.accuracy import AccuracyRow, Result, by_formats, formats_of
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import DASH
from ktbench.results.scores import ScoreVerdict
from ktbench.spec.features import BY_NAME
from ktbench.spec.sweep import arm_features

FEATURES = {"deferral": "deferred", "skipping": "skipped"}
_CELL_IN, _LABEL_IN = 0.16, 0.14
_LOSSES = LinearSegmentedColormap.from_list("losses", ["#ffffff", "#a0bfdb", "#1d3f5e"])
_DARK = -0.6  # from which letters are white

Colour = str | tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """A text, bold where it is `sure`: beyond noise; white where the face is `dark`; and a smaller `note` below it."""

    text: str
    mark: Mark
    face: Colour = "#eeeeee"
    dark: bool = False
    sure: bool = False
    note: str = ""


Places = Mapping[tuple[int, int], HeatCell]  # by column and line


def draw_precision(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """Two panels of cells over the formats of the device role and of the experts: average scores, relative changes."""
    experts, devices = formats_of(rows)
    places = {(devices.index(device), experts.index(name)): row for (name, device), row in by_formats(rows).items()}
    panels: tuple[tuple[str, Callable[[AccuracyRow], HeatCell]], ...] = (
        ("average score by format, %", _score_of_formats),
        ("relative change by format, %", _change_of_formats),
    )
    figure, every = heat_layout(len(experts), room_for(experts) + _LABEL_IN).draw(
        [title for title, _ in panels], caption
    )
    for axes, (_, cell) in zip(every, panels, strict=True):
        draw_cells(axes, {place: cell(row) for place, row in places.items()}, devices, len(experts))
        axes.set_xlabel("device role")
    name_lines(every, experts)
    every[0].set_ylabel("experts")
    return figure


def draw_heat(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """Published: a panel for deferred and one for skipped experts, tasks below each other, their number to the right.

    The first column is the score without either, the others the change relative to it in percent.
    """
    tasks = tasks_named(lines)
    figure, every = heat_layout(len(tasks), room_for(tasks)).draw(["" for _ in FEATURES], caption)
    for axes, feature in zip(every, FEATURES, strict=True):
        draw_published_heat(axes, lines, feature)
    name_lines(every, tasks)
    return figure


def room_for(names: Sequence[str]) -> float:
    """Inches that the names of lines take to the left of a map."""
    return max(width_in(name) for name in names) + 2 * RIGHT_IN


def heat_layout(lines: int, left_in: float) -> PanelGrid:
    """Two maps of so many lines abreast."""
    return PanelGrid(
        count=2, columns=2, tall_in=lines * _CELL_IN, above_in=0.18, below_in=0.34, left_in=left_in, gap_in=0.12
    )


def name_lines(maps: Sequence[Axes], names: Sequence[str]) -> None:
    """Name the lines of maps to the left of the first."""
    for n, axes in enumerate(maps):
        axes.set_yticks(range(len(names)), [""] * len(names) if n else names)


def draw_published_heat(axes: Axes, lines: Sequence[PaperLine], feature: str, where: str = "") -> None:
    """The panel of a feature: those of `lines` that are about it, or about neither."""
    (other,) = FEATURES.keys() - {feature}
    mine = [line for line in lines if line.published is not None and count_of(line, other) == 0]
    tasks = list(dict.fromkeys(line.what for line in lines))
    counts = sorted({count_of(line, feature) for line in mine})
    cells = {(counts.index(count_of(line, feature)), tasks.index(line.what)): _published_cell(line) for line in mine}
    draw_feature(axes, cells, counts, len(tasks), feature, where)


def draw_feature(axes: Axes, cells: Places, counts: Sequence[int], lines: int, feature: str, where: str = "") -> None:
    """A panel over how many experts a feature defers or skips: the score at none, where that is shown, and the changes.

    `where` says where the numbers are from, in figures that have some from several places.
    """
    draw_cells(axes, cells, ["score" if count == 0 else str(count) for count in counts or [0]], lines)
    axes.set_xlabel(f"experts {FEATURES[feature]} of a token")
    title = f"{feature.capitalize()}, {where}" if where else BY_NAME[feature].title
    axes.set_title(f"{title}: relative change, %")


def draw_cells(axes: Axes, cells: Places, columns: Sequence[str], lines: int, edge: str = "white") -> None:
    """Fill axes with cells, `columns` named below and `lines` of them below each other; bold: beyond noise."""
    for (x, y), cell in cells.items():
        box = axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=cell.face, edgecolor=edge, linewidth=0.8))
        mark(box, cell.mark)
        look: Any = {"ha": "center", "va": "center_baseline", "color": "white" if cell.dark else INK}
        weight = "bold" if cell.sure else "normal"
        axes.text(x, y - (0.2 if cell.note else 0.0), cell.text, weight=weight, **look)
        if cell.note:
            axes.text(x, y + 0.24, cell.note, fontsize=TICK_PT - 1, **look)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def count_of(line: PaperLine, feature: str) -> int:
    """How many experts the arm of a line defers or skips."""
    value = arm_features(line.arm)[feature]
    assert isinstance(value, int), f"{line.arm}: {feature}={value} is no number"
    return value


def change_cell(result: Result | None, at: Mark, otherwise: str = DASH) -> HeatCell:
    """The relative change of a score; `otherwise` where there is none."""
    if result is None or result.change is None or result.change.relative is None:
        return HeatCell(text=otherwise, mark=at)
    sure = result.change.verdict is not ScoreVerdict.NONE_SHOWN
    return _shaded(result.change.relative.mid, at, sure=sure)


def _shaded(change: float, at: Mark, *, sure: bool = False) -> HeatCell:
    """A relative change, the darker the greater the loss."""
    face = _LOSSES(min(max(-change, 0.0), 1.0))
    return HeatCell(text=signed(change), mark=at, face=face, dark=change < _DARK, sure=sure)


def _score_of_formats(row: AccuracyRow) -> HeatCell:
    """The average score with its standard error."""
    result = row.result()
    return HeatCell(text=score_text(None if result is None else result.score), mark=Mark(key=(row.row.cell,)))


def _change_of_formats(row: AccuracyRow) -> HeatCell:
    """The change of the average, and which cell is the baseline."""
    return change_cell(row.result(), Mark(key=(row.row.cell,)), "baseline" if row.is_baseline else DASH)


def _published_cell(line: PaperLine) -> HeatCell:
    """A line that has a published number: a score, or the change relative to it."""
    assert line.published is not None
    if line.metric == "relative %":
        return _shaded(line.published / 100, line_mark(line))
    return HeatCell(text=f"{line.published:g}", mark=line_mark(line))
