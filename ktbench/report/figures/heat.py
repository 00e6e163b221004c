"""Heat maps of scores and relative changes by format and as published, as in KTransformers (SOSP'25), Fig. 13."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ktbench.report.figures.paper_panels import line_mark, tasks_named
from ktbench.report.figures.sheet import PAGE_IN, RIGHT_IN, TOP_IN, Mark, Sheet, axes_at, mark, sheet
from ktbench.report.figures.text_metrics import INK, LABEL_PT, TICK_PT, width_in
from ktbench.report.text import DASH, score_text, signed
from ktbench.results.accuracy import AccuracyRow, Result, by_formats, formats_of
from ktbench.results.paper import PaperLine
from ktbench.results.scores import ScoreVerdict
from ktbench.spec.features import BY_NAME
from ktbench.spec.sweep import arm_features

FEATURES = {"deferral": "deferred", "skipping": "skipped"}
CELL_IN, HEAD_IN, FOOT_IN, GAP_IN = 0.16, 0.18, 0.34, 0.12
_FORMATS_FOOT_IN, _LABEL_IN = 0.32, 0.14
_LOSSES = LinearSegmentedColormap.from_list("losses", ["#ffffff", "#a0bfdb", "#1d3f5e"])
_DARK = -60.0  # percent, from which letters are white
_SCORE = "#eeeeee"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """`change` in percent shades it; None stands for a score or for nothing. A `sure` one is beyond noise."""

    text: str
    mark: Mark
    change: float | None = None
    sure: bool = False


Places = Mapping[tuple[int, int], HeatCell]  # by column and line


def draw_precision(rows: Sequence[AccuracyRow], caption: Sequence[str]) -> Sheet:
    """Two panels of cells over the formats of the device role and of the experts: average scores, relative changes."""
    experts, devices = formats_of(rows)
    left = max(width_in(name, TICK_PT) for name in experts) + 2 * RIGHT_IN + _LABEL_IN
    each = (PAGE_IN - left - RIGHT_IN - GAP_IN) / 2
    tall = len(experts) * CELL_IN
    figure = sheet(PAGE_IN, TOP_IN + HEAD_IN + tall + _FORMATS_FOOT_IN, caption)
    places = {(devices.index(device), experts.index(name)): row for (name, device), row in by_formats(rows).items()}
    panels: tuple[tuple[str, Callable[[AccuracyRow], HeatCell]], ...] = (
        ("average score by format, %", _score_of_formats),
        ("relative change by format, %", _change_of_formats),
    )
    for n, (title, cell) in enumerate(panels):
        axes = axes_at(figure, left + n * (each + GAP_IN), TOP_IN + HEAD_IN, each, tall)
        draw_cells(axes, {place: cell(row) for place, row in places.items()}, devices, len(experts))
        axes.set_title(title, fontsize=LABEL_PT, pad=3)
        axes.set_xlabel("device role", fontsize=LABEL_PT, labelpad=1)
        axes.set_yticks(range(len(experts)), experts if n == 0 else [""] * len(experts))
        if n == 0:
            axes.set_ylabel("experts", fontsize=LABEL_PT, labelpad=2)
    return figure


def draw_heat(lines: Sequence[PaperLine], caption: Sequence[str]) -> Sheet:
    """Published: a panel for deferred and one for skipped experts, tasks below each other, their number to the right.

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
    axes.set_xlabel(f"experts {FEATURES[feature]} of a token", fontsize=LABEL_PT, labelpad=1)
    title = f"{feature.capitalize()}, {where}" if where else BY_NAME[feature].title
    axes.set_title(f"{title}: relative change, %", fontsize=LABEL_PT, pad=3)


def draw_cells(axes: Axes, cells: Places, columns: Sequence[str], lines: int) -> None:
    """Fill axes with cells, `columns` named below and `lines` of them below each other; bold: beyond noise."""
    for (x, y), cell in cells.items():
        change = cell.change
        face = _SCORE if change is None else _LOSSES(min(max(-change, 0.0), 100.0) / 100)
        box = axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", linewidth=0.8))
        mark(box, cell.mark)
        color = "white" if change is not None and change < _DARK else INK
        weight = "bold" if cell.sure else "normal"
        axes.text(x, y, cell.text, fontsize=TICK_PT, ha="center", va="center_baseline", color=color, weight=weight)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.tick_params(length=0, labelsize=TICK_PT, pad=2)
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
    mid, sure = result.change.relative.mid, result.change.verdict is not ScoreVerdict.NONE_SHOWN
    return HeatCell(text=signed(mid), mark=at, change=100 * mid, sure=sure)


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
    is_change = line.metric == "relative %"
    text = signed(line.published / 100) if is_change else f"{line.published:g}"
    return HeatCell(text=text, mark=line_mark(line), change=line.published if is_change else None)
