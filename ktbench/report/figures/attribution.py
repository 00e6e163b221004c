"""The figure of shares: a waterfall from the baseline to all features, and beside it what pairs gain or lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ktbench.report.attribution_table import TOTAL, absences, context_text, group_name, settings_shown
from ktbench.report.figures.frame import decades
from ktbench.report.figures.heat import HeatCell, draw_cells
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    LEFT_IN,
    PAGE_IN,
    PLOT_IN,
    RIGHT_IN,
    TOP_IN,
    WHISKER,
    Key,
    Mark,
    Sheet,
    mark,
    reach,
    scaled,
)
from ktbench.report.figures.text_metrics import INK, PAD_IN, folded, line_in, text_above, width_in
from ktbench.report.table import Table
from ktbench.results.attribution import Attribution, FeatureAttribution, FeaturePair
from ktbench.results.intervals import Interval
from ktbench.results.quantities.text import DASH
from ktbench.results.usage import Spread

Kind = Literal["base", "gain", "loss", "whole"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar from one factor to another; `whisker` is where its end may lie. Without `end` the text says why."""

    name: str
    kind: Kind
    start: float = 1.0
    end: float | None = None
    text: str = DASH
    whisker: Spread | None = None

    @property
    def reached(self) -> list[float]:
        """Factors that bar and whisker reach."""
        whisker = [self.whisker.low, self.whisker.high] if self.whisker else []
        return [self.start, self.end or self.start, *whisker]


def bars_of(one: Attribution) -> tuple[Bar, ...]:
    """The baseline, the features and all together, from left to right.

    Shares lead from 1 to the total. Without them each feature hangs from the total down to the speed-up without it.
    """
    total = Bar(name=TOTAL, kind="whole") if one.total is None else _bar(TOTAL, "whole", 1.0, one.total)
    return (Bar(name=one.baseline, kind="base", end=1.0, text="1"), *_steps(one), total)


def _steps(one: Attribution) -> Iterator[Bar]:
    at = 1.0
    for share in one.shares:
        if one.orders and share.factor is not None:
            yield _step(share, at, share.factor)
            at *= share.factor.mid
        elif not one.orders and one.total is not None and share.last is not None:
            yield _step(share, one.total.mid / share.last.mid, share.last)
        else:
            yield Bar(name=share.feature, kind="base")


def _step(share: FeatureAttribution, start: float, factor: Interval) -> Bar:
    part = f"\n{100 * share.part.mid:.0f} %" if share.part else ""
    return _bar(share.feature, "gain" if factor.mid >= 1 else "loss", start, factor, part)


def _bar(name: str, kind: Kind, start: float, factor: Interval, part: str = "") -> Bar:
    text = f"×{factor.mid:.{3 if factor.mid < 2 else 2}f}{part}"
    whisker = scaled(factor, start) if factor.has_ends else None
    return Bar(name=name, kind=kind, start=start, end=start * factor.mid, text=text, whisker=whisker)


_CELL_IN, _TALL_IN = 0.44, 0.3
# From what features lose together to what they gain together: light in between; numbers distinguish the two in grey.
_SIGNED = LinearSegmentedColormap.from_list("signed", ["#c98a4b", "#f3e3d2", "#ffffff", "#dde9f3", "#4a76a3"])
_FULL = log(1.25)  # at least, so that noise does not look like an effect
_DARK = 0.75  # of the full colour, from which letters are white


def matrix_in(one: Attribution) -> tuple[float, float]:
    """Width and height in inches; 0 where there is no pair."""
    count = len(one.features) - 1
    return (0.0, 0.0) if not one.pairs else (count * _cell_in(one), count * _TALL_IN)


def _cell_in(one: Attribution) -> float:
    texts = [_below(one, pair) for pair in one.pairs] + list(one.features)
    return max(_CELL_IN, *(width_in(text) + 0.06 for text in texts))


def draw_matrix(axes: Axes, one: Attribution, group: str) -> None:
    """Pairs below the diagonal: the later feature names the line, the earlier one the column."""
    columns, lines = one.features[:-1], one.features[1:]
    full = max([_FULL, *(abs(log(pair.factor.mid)) for pair in one.pairs if pair.factor)])
    cells = {(columns.index(pair.one), lines.index(pair.other)): _cell(one, pair, full, group) for pair in one.pairs}
    draw_cells(axes, cells, columns, len(lines), edge="#cccccc")
    axes.set_yticks(range(len(lines)), lines)


def _cell(one: Attribution, pair: FeaturePair, full: float, group: str) -> HeatCell:
    at = Mark(key=(group, pair.one, pair.other))
    if pair.factor is None:
        return HeatCell(text=DASH, mark=at)
    depth = log(pair.factor.mid) / full
    text, note = f"{pair.factor.mid:.3f}", _below(one, pair)
    return HeatCell(text=text, mark=at, face=_SIGNED((1 + depth) / 2), dark=depth > _DARK, sure=pair.is_sure, note=note)


def _below(one: Attribution, pair: FeaturePair) -> str:
    return "" if pair.factor is None else f"at {context_text(one, pair)}"


_LOOKS: Mapping[Kind, Mapping[str, Any]] = {
    "base": {},
    "gain": {"facecolor": "#a0bfdb"},
    "loss": {"facecolor": "#ffffff", "hatch": "/////"},
    "whole": {"facecolor": "#4a76a3"},
}
_WIDTH = 0.7  # of a slot
_LEAST_SPAN = 1.1  # of the axis, so that equal cells look equal


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
    axes.set_ylabel(f"speed-up over {one.baseline} (×)")
    axes.yaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(bars)), _names(bars, width_in_))
    axes.tick_params(axis="x", length=0)


def _draw(axes: Axes, x: int, bar: Bar, key: Key) -> None:
    if bar.end is not None:
        bottom, height = min(bar.start, bar.end), abs(bar.end - bar.start)
        look = {"edgecolor": INK, "linewidth": 0.6, **_LOOKS[bar.kind]}
        (box,) = axes.bar(x, height, _WIDTH, bottom=bottom, zorder=2, **look)
        if x:
            mark(box, Mark(key=key))
    if bar.whisker is not None:
        axes.errorbar(x, bar.whisker.mid, reach([bar.whisker]), ecolor="black", zorder=4, **WHISKER)
    text = text_above(axes, x, max(bar.reached), bar.text, upright=False)
    if bar.end is None:
        mark(text, Mark(key=key))


def _limits(bars: tuple[Bar, ...]) -> tuple[float, float]:
    """Ends of the axis, so that whiskers and the text above them fit."""
    low, high = min(min(bar.reached) for bar in bars), max(*(max(bar.reached) for bar in bars), _LEAST_SPAN)
    low = low / (high / low) ** 0.04
    lines = max(bar.text.count("\n") + 1 for bar in bars)
    free = 1 - (lines * line_in() + 3 * PAD_IN) / PLOT_IN
    return low, low * (high / low) ** (1 / free)


def _ticks(low: float, high: float) -> list[float]:
    """Decades with what is between them; in less than one as many round factors as are needed to read it."""
    coarse = decades(low, high)
    if len(coarse) >= 3:
        return coarse
    for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        found = [round(n * step, 2) for n in range(1, int(high / step) + 1) if low <= n * step <= high]
        if len(found) >= 3:
            return found
    return [1.0]


def _names(bars: Sequence[Bar], width: float) -> list[str]:
    return [folded(bar.name, 0.9 * width / len(bars)) for bar in bars]


def names_in(one: Attribution, width: float) -> float:
    """Room that the names below the axis take, in inches, where bars share `width` inches."""
    lines = max(name.count("\n") + 1 for name in _names(bars_of(one), width))
    return (lines + 0.6) * line_in()


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
        head + max(PLOT_IN + names_in(one, plot), tall + 2 * line_in()) + TOP_IN
        for one, head, (_, tall) in zip(attributions, heads, matrices, strict=True)
    ]
    missing = [f"{note}." for one in attributions for note in absences(one, settings)]
    figure = Sheet(width, sum(talls), [table.figure_caption, *missing])
    top = 0.0
    for n, (one, head, tall, (wide, high)) in enumerate(zip(attributions, heads, talls, matrices, strict=True)):
        axes = figure.axes_at(LEFT_IN, top + head, plot, title=group_name(one, settings))
        draw_waterfall(axes, one, plot, str(n))
        if wide:
            left, middle = width - RIGHT_IN - wide, top + head + max(0.0, (PLOT_IN - high) / 2)
            draw_matrix(figure.axes_at(left, middle, wide, high, "interaction (×)"), one, str(n))
        top += tall
    return figure
