"""The figure of shares: a waterfall from the baseline to all features, and beside it what pairs gain or lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ktbench.report.attribution_table import TOTAL, absences, context_text, group_name, settings_shown
from ktbench.report.figures.frame import decades
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    LEFT_IN,
    PAGE_IN,
    PLOT_IN,
    RIGHT_IN,
    TOP_IN,
    Key,
    Mark,
    Sheet,
    axes_at,
    mark,
    sheet,
)
from ktbench.report.figures.text_metrics import INK, LABEL_PT, PAD_IN, TICK_PT, VALUE_PT, line_in, text_above, width_in
from ktbench.report.table import Table
from ktbench.report.text import DASH
from ktbench.results.attribution import Attribution, FeatureAttribution, FeaturePair
from ktbench.results.intervals import Interval, is_exact

Kind = Literal["base", "gain", "loss", "whole"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar from one factor to another; `whisker` is where its end may lie. Without `end` the text says why.

    `factor` is the step that it makes, `part` that step's share of the log speed-up.
    """

    name: str
    kind: Kind
    start: float
    end: float | None
    text: str
    factor: Interval | None = None
    part: Interval | None = None
    whisker: Interval | None = None

    @property
    def top(self) -> float:
        """Where bar and whisker end above."""
        ends = [self.start, self.end or self.start, self.whisker.high if self.whisker else self.start]
        return max(ends)

    @property
    def bottom(self) -> float:
        """Where bar and whisker end below."""
        return min(self.start, self.end or self.start, self.whisker.low if self.whisker else self.start)


def bars_of(one: Attribution) -> tuple[Bar, ...]:
    """The baseline, the features and all together, from left to right.

    Shares lead from 1 to the total. Without them each feature hangs from the total down to the speed-up without it.
    """
    return (Bar(name=one.baseline, kind="base", start=1.0, end=1.0, text="1"), *_steps(one), _total(one))


def _steps(one: Attribution) -> Iterator[Bar]:
    at = 1.0
    for share in one.shares:
        if one.orders and share.factor is not None:
            yield _step(share, at, share.factor)
            at *= share.factor.mid
        elif not one.orders and one.total is not None and share.last is not None:
            yield _step(share, one.total.mid / share.last.mid, share.last)
        else:
            yield Bar(name=share.feature, kind="base", start=1.0, end=None, text=DASH)


def _step(share: FeatureAttribution, start: float, factor: Interval) -> Bar:
    whisker = Interval(
        low=start * factor.low, mid=start * factor.mid, high=start * factor.high, coverage=factor.coverage, n=factor.n
    )
    part = f"\n{100 * share.part.mid:.0f} %" if share.part else ""
    return Bar(
        name=share.feature,
        kind="gain" if factor.mid >= 1 else "loss",
        start=start,
        end=whisker.mid,
        text=f"×{factor.mid:.{3 if factor.mid < 2 else 2}f}{part}",
        factor=factor,
        part=share.part,
        whisker=None if is_exact(factor) else whisker,
    )


def _total(one: Attribution) -> Bar:
    if one.total is None:
        return Bar(name=TOTAL, kind="whole", start=1.0, end=None, text=DASH)
    mid = one.total.mid
    text = f"×{mid:.{3 if mid < 2 else 2}f}"
    whisker = None if is_exact(one.total) else one.total
    return Bar(name=TOTAL, kind="whole", start=1.0, end=mid, text=text, factor=one.total, whisker=whisker)


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


def draw_matrix(axes: Axes, one: Attribution, group: str) -> None:
    """Pairs below the diagonal: the later feature names the line, the earlier one the column."""
    columns, lines = one.features[:-1], one.features[1:]
    full = max([_FULL, *(abs(log(pair.factor.mid)) for pair in one.pairs if pair.factor)])
    for pair in one.pairs:
        box = _cell(axes, columns.index(pair.one), lines.index(pair.other), one, pair, full)
        mark(box, Mark(key=(group, pair.one, pair.other)))
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_yticks(range(len(lines)), list(lines))
    axes.tick_params(length=0, labelsize=TICK_PT, pad=2)
    axes.set_title("interaction (×)", fontsize=LABEL_PT, pad=3)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Axes, x: int, y: int, one: Attribution, pair: FeaturePair, full: float) -> Patch:
    depth = 0.0 if pair.factor is None else log(pair.factor.mid) / full
    face = _NOTHING if pair.factor is None else _SIGNED((1 + depth) / 2)
    box = axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="#cccccc", linewidth=0.5))
    color = "white" if depth > _DARK else INK
    text = DASH if pair.factor is None else f"{pair.factor.mid:.3f}"
    weight = "bold" if pair.is_sure else "normal"
    axes.text(x, y - 0.16, text, fontsize=TICK_PT, ha="center", va="center", color=color, weight=weight)
    axes.text(x, y + 0.24, _below(one, pair), fontsize=TICK_PT - 1, ha="center", va="center", color=color)
    return box


def _below(one: Attribution, pair: FeaturePair) -> str:
    return "" if pair.factor is None else f"at {context_text(one, pair)}"


_LOOKS: Mapping[Kind, Mapping[str, Any]] = {
    "base": {},
    "gain": {"facecolor": "#a0bfdb"},
    "loss": {"facecolor": "#ffffff", "hatch": "/////"},
    "whole": {"facecolor": "#4a76a3"},
}
_WIDTH = 0.7  # of a slot
_LEAST_SPAN = 1.1  # of the axis, so that equal cells do not look far apart


def draw_waterfall(axes: Axes, one: Attribution, width_in_: float, group: str) -> None:
    """Draw the bars of an attribution into axes `width_in_` inches wide; `group` begins the keys of their marks."""
    bars = bars_of(one)
    low, high = _limits(bars)
    axes.set_yscale("log")
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(low, high)
    axes.axhline(1, color=INK, linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
    for x, bar in enumerate(bars):
        _draw(axes, x, bar, (group, bar.name))
    for x, (bar, following) in enumerate(pairwise(bars)):
        if bar.end is not None and one.orders and following.end is not None:
            axes.plot([x + _WIDTH / 2, x + 1 - _WIDTH / 2], [bar.end, bar.end], color=INK, linewidth=0.5, zorder=1.5)
    axes.set_ylabel(f"speed-up over {one.baseline} (×)", fontsize=LABEL_PT, labelpad=2)
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
    axes.set_xticks(range(len(bars)), [_folded(bar.name, width_in_ / len(bars)) for bar in bars], fontsize=TICK_PT)
    axes.tick_params(axis="x", length=0, pad=2)


def _draw(axes: Axes, x: int, bar: Bar, key: Key) -> None:
    if bar.end is not None:
        bottom, height = min(bar.start, bar.end), abs(bar.end - bar.start)
        look = {"edgecolor": INK, "linewidth": 0.6, **_LOOKS[bar.kind]}
        (box,) = axes.bar(x, height, _WIDTH, bottom=bottom, zorder=2, **look)
        if x:
            mark(box, Mark(key=key))
    if bar.whisker is not None:
        reach = [[bar.whisker.mid - bar.whisker.low], [bar.whisker.high - bar.whisker.mid]]
        axes.errorbar(x, bar.whisker.mid, reach, ecolor="black", elinewidth=0.8, capsize=1.8, capthick=0.8, zorder=4)
    text = text_above(axes, x, bar.top, bar.text, upright=False)
    if bar.end is None:
        mark(text, Mark(key=key))


def _limits(bars: tuple[Bar, ...]) -> tuple[float, float]:
    """Ends of the axis, so that whiskers and the text above them fit."""
    low, high = min(bar.bottom for bar in bars), max(*(bar.top for bar in bars), _LEAST_SPAN)
    low = low / (high / low) ** 0.04
    lines = max(bar.text.count("\n") + 1 for bar in bars)
    free = 1 - (lines * line_in(VALUE_PT) + 3 * PAD_IN) / PLOT_IN
    return low, low * (high / low) ** (1 / free)


def _ticks(low: float, high: float) -> list[float]:
    """Decades with what is between them; in less than one as many round factors as tell them apart."""
    coarse = decades(low, high)
    if len(coarse) >= 3:
        return coarse
    for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        found = [round(n * step, 2) for n in range(1, int(high / step) + 1) if low <= n * step <= high]
        if len(found) >= 3:
            return found
    return [1.0]


def _folded(name: str, room_in: float) -> str:
    return name if width_in(name, TICK_PT) <= 0.9 * room_in else name.replace(" ", "\n")


def names_in(one: Attribution, width: float) -> float:
    """Room that the names below the axis take, in inches, where bars share `width` inches."""
    names = [bar.name for bar in bars_of(one)]
    lines = max(_folded(name, width / len(names)).count("\n") + 1 for name in names)
    return (lines + 0.6) * line_in(TICK_PT)


_BARS_IN_COLUMN = 8
_TITLE_IN, _GAP_IN = 0.16, 0.75


def draw_attribution(attributions: Sequence[Attribution], table: Table) -> Sheet:
    """A waterfall for each group below each other; with `interactions` the matrix of pairs to the right of each."""
    settings = settings_shown(attributions)
    matrices = [matrix_in(one) if table.figure == "interactions" else (0.0, 0.0) for one in attributions]
    aside = max(width + _GAP_IN if width else 0.0 for width, _ in matrices)
    bars = max(len(one.shares) for one in attributions) + 2
    width = COLUMN_IN if bars <= _BARS_IN_COLUMN and not aside else PAGE_IN
    plot = width - LEFT_IN - RIGHT_IN - aside
    heads = [_TITLE_IN if group_name(one, settings) or aside else 0.0 for one in attributions]
    talls = [
        head + max(PLOT_IN + names_in(one, plot), tall + 2 * line_in(TICK_PT)) + TOP_IN
        for one, head, (_, tall) in zip(attributions, heads, matrices, strict=True)
    ]
    missing = [f"{note}." for one in attributions for note in absences(one, settings)]
    figure = sheet(width, TOP_IN + sum(talls), [table.figure_caption, *missing, *table.conditions])
    top = TOP_IN
    for n, (one, head, tall, (wide, high)) in enumerate(zip(attributions, heads, talls, matrices, strict=True)):
        axes = axes_at(figure, LEFT_IN, top + head, plot)
        axes.set_title(group_name(one, settings), fontsize=LABEL_PT, pad=3)
        draw_waterfall(axes, one, plot, str(n))
        if wide:
            left = width - RIGHT_IN - wide
            matrix = axes_at(figure, left, top + head + max(0.0, (PLOT_IN - high) / 2), wide, high)
            draw_matrix(matrix, one, str(n))
        top += tall
    return figure
