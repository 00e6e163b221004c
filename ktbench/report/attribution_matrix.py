"""The matrix of pairs: by which factor two features together differ from the product of each alone."""

from __future__ import annotations

from math import log

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ktbench.report.attribution_table import context_text
from ktbench.report.lettering import INK, LABEL_PT, TICK_PT, width_in
from ktbench.report.text import DASH
from ktbench.results.attribution import Attribution, FeaturePair

_CELL_IN, _TALL_IN = 0.44, 0.3
# From what features lose together to what they gain together: light in between, and told apart in grey by the numbers.
_SIGNED = LinearSegmentedColormap.from_list("signed", ["#c98a4b", "#f3e3d2", "#ffffff", "#dde9f3", "#4a76a3"])
_FULL = log(1.25)  # at least, so that noise does not look like an effect
_DARK = 0.75  # of the full colour, from which letters are white
_NOTHING = "#eeeeee"


def matrix_in(one: Attribution) -> tuple[float, float]:
    """Width and height in inches; 0 where there is no pair."""
    count = len(one.features) - 1
    return (0.0, 0.0) if not one.pairs else (count * _cell_in(one), count * _TALL_IN)


def _cell_in(one: Attribution) -> float:
    texts = [_below(one, pair) for pair in one.pairs] + list(one.features)
    return max(_CELL_IN, *(width_in(text, TICK_PT) + 0.06 for text in texts))


def draw_matrix(axes: Axes, one: Attribution) -> None:
    """Pairs below the diagonal: the later feature names the line, the earlier one the column."""
    columns, lines = one.features[:-1], one.features[1:]
    full = max([_FULL, *(abs(log(pair.factor.mid)) for pair in one.pairs if pair.factor)])
    for pair in one.pairs:
        _cell(axes, columns.index(pair.one), lines.index(pair.other), one, pair, full)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_yticks(range(len(lines)), list(lines))
    axes.tick_params(length=0, labelsize=TICK_PT, pad=2)
    axes.set_title("interaction (×)", fontsize=LABEL_PT, pad=3)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Axes, x: int, y: int, one: Attribution, pair: FeaturePair, full: float) -> None:
    depth = 0.0 if pair.factor is None else log(pair.factor.mid) / full
    face = _NOTHING if pair.factor is None else _SIGNED((1 + depth) / 2)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#cccccc", linewidth=0.5))
    color = "white" if depth > _DARK else INK
    text = DASH if pair.factor is None else f"{pair.factor.mid:.3f}"
    weight = "bold" if pair.is_sure else "normal"
    axes.text(x, y - 0.16, text, fontsize=TICK_PT, ha="center", va="center", color=color, weight=weight)
    axes.text(x, y + 0.24, _below(one, pair), fontsize=TICK_PT - 1, ha="center", va="center", color=color)


def _below(one: Attribution, pair: FeaturePair) -> str:
    return "" if pair.factor is None else f"at {context_text(one, pair)}"
