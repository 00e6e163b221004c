"""Recipes over trainings and shares: losses over steps; a waterfall to all features, and what pairs gain or lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ktbench.report.attribution_table import TOTAL, absences, context_text, group_name, settings_shown
from ktbench.report.figures.marks import (
    NO_FACE,
    SIGNED,
    Look,
    bars,
    decades,
    ends,
    extent,
    frame_of,
    handles,
    heat,
    name_groups,
    round_ticks,
    set_axes,
    set_ticks,
)
from ktbench.report.figures.sheet import PLOT_IN, Mark, Room, Sheet, mark, panel_sheet
from ktbench.report.figures.style import COLUMN_IN, DARK, HOLLOW, INK, MIDDLE, PAGE_IN, REFERENCE, looks
from ktbench.report.learning_table import learned_name
from ktbench.report.learning_table import settings_shown as settings_of_arms
from ktbench.report.text import not_drawn
from ktbench.results.attribution import Attribution, FeatureAttribution, FeaturePair
from ktbench.results.intervals import Interval
from ktbench.results.quantities.text import DASH
from ktbench.results.usage import Spread
from ktbench.spec.sweep import FigureStyle

if TYPE_CHECKING:
    from ktbench.report.documents import Document

_BARS: Mapping[str, Look] = {"base": {}, "gain": MIDDLE, "loss": HOLLOW, "whole": DARK}
_LEAST_SPAN = 1.1  # of the axis, so that equal cells look equal
_FULL = log(1.25)  # at least, so that noise does not look like an effect
_LINE_IN = 0.3


def shares(document: Document, style: FigureStyle) -> Sheet:
    """A waterfall for each group below each other; with `interactions` the matrix of pairs to the right of each."""
    found, table = document.attributions, document.table
    settings = settings_shown(found)
    paired = table.figure == "interactions" and any(one.pairs for one in found)
    most = max(len(one.shares) for one in found) + 2
    wide = style.width or (COLUMN_IN if most <= 8 and not paired else PAGE_IN)
    beside = paired and wide > 5
    heights = [tall for one in found for tall in ([PLOT_IN] if not paired or beside else [PLOT_IN, _matrix_in(one)])]
    missing = [f"{note}." for one in found for note in absences(one, settings)]
    sheet = Sheet(style, [table.figure_caption, *missing], heights, columns=5 if beside else 1, width=wide)
    for n, one in enumerate(found):
        line = n * len(heights) // len(found)
        axes = sheet.axes_in(line, 0, 3 if beside else None, group_name(one, settings))
        _waterfall(sheet, axes, one, str(n))
        if paired and one.pairs:
            axes = sheet.axes_in(line, 3, 5) if beside else sheet.axes_in(line + 1)
            axes.set_title(style.text("interaction (×)"))
            _matrix(sheet, axes, one, str(n))
    return sheet


def _matrix_in(one: Attribution) -> float:
    return max(1, len(one.features) - 1) * _LINE_IN


def bars_of(one: Attribution, group: str = "") -> pd.DataFrame:
    """The baseline, the features and all together, from left to right: from the factor `base` to the factor `y`.

    Shares lead from 1 to the total. Without them each feature hangs from the total down to the speed-up without it.
    Where there is no factor `y` is NaN and the text a dash.
    """
    total = _step(TOTAL, "whole", 1.0, one.total)
    lines = [_step(one.baseline, "base", 1.0, None) | {"y": 1.0, "text": "1"}, *_steps(one), total]
    return frame_of(line | {"mark": Mark(key=(group, str(line["x"]))) if n else None} for n, line in enumerate(lines))


def _steps(one: Attribution) -> Iterator[dict[str, Any]]:
    at = 1.0
    for share in one.shares:
        if one.orders and share.factor is not None:
            yield _share(share, at, share.factor)
            at *= share.factor.mid
        elif not one.orders and one.total is not None and share.last is not None:
            yield _share(share, one.total.mid / share.last.mid, share.last)
        else:
            yield _step(share.feature, "base", 1.0, None)


def _share(share: FeatureAttribution, start: float, factor: Interval) -> dict[str, Any]:
    part = f"\n{100 * share.part.mid:.0f} %" if share.part else ""
    return _step(share.feature, "gain" if factor.mid >= 1 else "loss", start, factor, part)


def _step(name: str, kind: str, start: float, factor: Interval | None, part: str = "") -> dict[str, Any]:
    text = DASH if factor is None else f"×{factor.mid:.{3 if factor.mid < 2 else 2}f}{part}"
    return {"x": name, "name": kind, "base": start, "text": text, **ends("y", factor, start)}


def _waterfall(sheet: Sheet, axes: Axes, one: Attribution, group: str) -> None:
    f = bars_of(one, group)
    reached = f[["base", "y", "y_low", "y_high"]].to_numpy(float)
    low, high = float(np.nanmin(reached)), max(float(np.nanmax(reached)), _LEAST_SPAN)
    axes.set_yscale("log")
    axes.set_ylim(low / (high / low) ** 0.04, high)
    axes.axhline(1, color=INK, linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
    bars(sheet, axes, f, _BARS)
    if one.orders:
        for x, (bar, following) in enumerate(pairwise(f.itertuples())):
            if not np.isnan(bar.y) and not np.isnan(following.y):
                axes.plot([x + 0.4, x + 0.6], [bar.y, bar.y], color=INK, linewidth=0.5, zorder=1.5)
    name_groups(sheet, axes, list(f["x"]))
    sheet.name_axes(axes, y=f"speed-up over {one.baseline} (×)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    sheet.fits.append(lambda: axes.yaxis.set_major_locator(FixedLocator(_ticks(*axes.get_ylim()))))


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


def _matrix(sheet: Sheet, axes: Axes, one: Attribution, group: str) -> None:
    """Pairs below the diagonal: the later feature names the line, the earlier one the column."""
    columns, lines = one.features[:-1], one.features[1:]
    full = max([_FULL, *(abs(log(pair.factor.mid)) for pair in one.pairs if pair.factor)])
    f = frame_of(
        _pair(one, pair, full, group) | {"x": columns.index(pair.one), "y": lines.index(pair.other)}
        for pair in one.pairs
    )
    heat(sheet, axes, f, columns, lines, edge="#cccccc")


def _pair(one: Attribution, pair: FeaturePair, full: float, group: str) -> dict[str, Any]:
    at = Mark(key=(group, pair.one, pair.other))
    if pair.factor is None:
        return {"text": DASH, "mark": at, "face": NO_FACE, "dark": False, "sure": False, "note": ""}
    shade = log(pair.factor.mid) / full
    face, note = SIGNED((1 + shade) / 2), f"at {context_text(one, pair)}"
    return {
        "text": f"{pair.factor.mid:.3f}",
        "mark": at,
        "face": face,
        "dark": shade > 0.75,
        "sure": pair.is_sure,
        "note": note,
    }


_EVERY = 8  # markers on a curve, which tell it apart in grey
_LOSS, _APART = "loss (nats/token)", "difference to {} (nats/token)"


def learning(document: Document, style: FigureStyle) -> Sheet:
    """The losses of arms over the steps and, where there is a baseline, their differences to it."""
    learned = document.learned
    settings = settings_of_arms(learned)
    arms = {learned_name(one, settings): one for one in learned if one.losses}
    look, base = looks(arms), next((one.shown for one in learned if one.is_baseline), "")
    parts = [_LOSS, *([_APART.format(base)] if any(one.apart for one in learned) else [])]
    absent = not_drawn((name, one.why) for one in learned if (name := learned_name(one, settings)) not in arms)
    caption = [document.table.figure_caption, *absent]
    sheet, every, _ = panel_sheet(style, caption, [""] * len(parts), Room(most=2, least_in=2.4), handles(look))
    for name, axes in zip(parts, every, strict=True):
        shown = {arm: one.losses if name == _LOSS else one.apart for arm, one in arms.items()}
        _losses(sheet, axes, {arm: steps for arm, steps in shown.items() if steps}, look, log_y=name == _LOSS)
        sheet.name_axes(axes, "step", name)
    return sheet


def _losses(
    sheet: Sheet, axes: Axes, arms: Mapping[str, Sequence[Spread]], look: Mapping[str, Look], *, log_y: bool
) -> None:
    """A curve for each arm over the steps from 1 on, with the band of its spread."""
    f = frame_of(
        {"name": arm, "x": n} | ends("y", step) for arm, steps in arms.items() for n, step in enumerate(steps, 1)
    )
    low, high = extent(f) or (1.0, 1.0)
    log_y = log_y and low > 0
    count, room = max(map(len, arms.values()), default=1), 0.05 * (high - low)
    set_axes(axes, (0, 1.05 * count), (low / 1.1, high * 1.1) if log_y else (low - room, high + room), log_y=log_y)
    bottom, top = axes.get_ylim()
    set_ticks(sheet, axes, round_ticks(count), decades(bottom, top) if log_y else round_ticks(top, 5, bottom))
    if bottom < 0 < top:
        axes.axhline(0, color=REFERENCE, linewidth=0.6, zorder=1)
    for n, (arm, part) in enumerate(f.groupby("name", sort=False)):
        xs, low_, mid, high_ = (part[of].to_numpy(float) for of in ("x", "y_low", "y", "y_high"))
        axes.fill_between(xs, low_, high_, color=look[str(arm)]["color"], alpha=0.14, linewidth=0, zorder=1.5)
        spaced = max(1, len(part) // _EVERY)
        line = axes.plot(xs, mid, markevery=(n * spaced // len(arms), spaced), zorder=3, **look[str(arm)])[0]
        mark(line, Mark(key=("learned", str(arm))))
