"""A heat map of scores and relative changes, in the form of KTransformers (SOSP'25), Fig. 13."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ktbench.report.accuracy.cells import HeatCell
from ktbench.report.accuracy.counts import FEATURES
from ktbench.report.lettering import INK, LABEL_PT, TICK_PT
from ktbench.spec.features import BY_NAME

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
