"""A heat map of scores and relative changes, in the form of KTransformers (SOSP'25), Fig. 13."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ktbench.core.features import BY_NAME
from ktbench.report.accuracy.counts import FEATURES
from ktbench.report.lettering import INK, LABEL_PT, TICK_PT

CELL_IN, HEAD_IN, FOOT_IN, GAP_IN = 0.16, 0.18, 0.34, 0.12
_LOSSES = LinearSegmentedColormap.from_list("losses", ["#ffffff", "#a0bfdb", "#1d3f5e"])
_DARK = -60.0  # per cent from which letters are white
_SCORE = "#eeeeee"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """A cell in column `x` of line `y`. `change` in percent colours it, None stands for a score or for nothing.

    A `sure` one is beyond noise and printed in bold.
    """

    x: int
    y: int
    text: str
    change: float | None = None
    sure: bool = False


def draw_cells(axes: Axes, cells: Sequence[HeatCell], columns: Sequence[str], lines: int) -> None:
    """Fill axes with cells, `columns` named below them and `lines` of them below each other."""
    for cell in cells:
        change = cell.change
        face = _SCORE if change is None else _LOSSES(min(max(-change, 0.0), 100.0) / 100)
        corner = (cell.x - 0.5, cell.y - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor="white", linewidth=0.8))
        color = "white" if change is not None and change < _DARK else INK
        weight = "bold" if cell.sure else "normal"
        axes.text(
            cell.x, cell.y, cell.text, fontsize=TICK_PT, ha="center", va="center_baseline", color=color, weight=weight
        )
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.tick_params(length=0, labelsize=TICK_PT, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_feature(
    axes: Axes, cells: Sequence[HeatCell], counts: Sequence[int], lines: int, feature: str, where: str = ""
) -> None:
    """A panel over how many experts a feature defers or skips: the score at none, where that is shown, and the changes.

    `where` says where the numbers are from, in figures that have some from several places.
    """
    draw_cells(axes, cells, ["score" if count == 0 else str(count) for count in counts or [0]], lines)
    axes.set_xlabel(f"experts {FEATURES[feature]} of a token", fontsize=LABEL_PT, labelpad=1)
    title = f"{feature.capitalize()}, {where}" if where else BY_NAME[feature].title
    axes.set_title(f"{title}: relative change, %", fontsize=LABEL_PT, pad=3)
