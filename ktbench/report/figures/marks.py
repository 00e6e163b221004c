"""The marks of charts over a frame: bars, curves, points, heat; and what axes need: ranges, ticks, names.

A frame has a row for each thing that is drawn: `x`, `y`, the ends `y_low` and `y_high` of its interval (NaN where it
has none), the `name` of its series, and its `mark`. Points may have `x_low` and `x_high`, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from ktbench.report.figures.sheet import Sheet, mark
from ktbench.report.figures.style import (
    EDGE,
    INK,
    MARKER_PT,
    PAD_IN,
    REFERENCE,
    folded,
    line_in,
    tick_pt,
    width_in,
)
from ktbench.results.intervals import Interval
from ktbench.results.scores import Estimate
from ktbench.results.usage import Spread

Look = Mapping[str, Any]
WHISKER: Any = {"elinewidth": 0.7, "capsize": 1.6, "capthick": 0.7}
_WIDE = 8.0  # above this ratio of largest to least a linear axis loses the small values
_MARGIN, ABOVE = 0.06, 1.12  # room beside the outermost values and above the largest
_GAP_IN = 0.03  # between two names of ticks
_BAR = 0.8  # of a place


def ends(of: str, value: Interval | Estimate | Spread | None, factor: float = 1.0) -> dict[str, float]:
    """Columns `of`, `<of>_low` and `<of>_high` of a value times a factor; NaN where there is none, or no interval."""
    if value is None:
        return dict.fromkeys((of, f"{of}_low", f"{of}_high"), np.nan)
    none = isinstance(value, Interval) and not value.has_ends
    low, high = (np.nan if none or end is None else factor * end for end in (value.low, value.high))
    return {of: factor * value.mid, f"{of}_low": low, f"{of}_high": high}


def frame_of(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of what is drawn, which may be nothing."""
    columns = ["name", "x", "y", "y_low", "y_high", "mark"]
    found = pd.DataFrame([*lines])
    return found if len(found) else pd.DataFrame(columns=columns)


def extent(f: pd.DataFrame, of: str = "y") -> tuple[float, float] | None:
    """The least and the most that values with their intervals reach; None of an empty frame."""
    found = f[[of, f"{of}_low", f"{of}_high"]].to_numpy(dtype=float) if len(f) else np.empty(0)
    return (float(np.nanmin(found)), float(np.nanmax(found))) if found.size else None


def _reach(f: pd.DataFrame, of: str) -> Any:
    """How far whiskers reach below and above, as `errorbar` takes it; None where no value has an interval."""
    if f"{of}_low" not in f:
        return None
    found = np.abs(f[[f"{of}_low", f"{of}_high"]].to_numpy(dtype=float).T - f[of].to_numpy(dtype=float))
    return np.nan_to_num(found) if np.nansum(found) > 0 else None


def bars(
    sheet: Sheet, axes: Axes, f: pd.DataFrame, looks: Mapping[str, Look], groups: Sequence[Any] = ()
) -> list[float]:
    """A group of bars for each `x`, side by side, with whiskers and `text` above; returns the middles of the groups.

    Bars begin at `base` where the frame has one; without a `y` there is the text alone. Bars are one place apart, and
    one place is free between groups; with `groups`, which may have no bars, groups are one apart and a series has the
    same place in each.
    """
    names, shown = list(looks), list(groups or dict.fromkeys(f["x"]))
    counts = f.groupby("x").size()
    single = bool(groups) or max(counts, default=1) == 1
    step = 1 / (len(names) + 0.7) if groups else 1.0
    sizes = [1 if single else counts.get(group, 0) + 1 for group in shown]
    middles = [sum(sizes[:n]) + (0.0 if single else (sizes[n] - 2) / 2) for n in range(len(shown))]
    texts = list[tuple[Text, float]]()
    for place, bar in zip(f.groupby("x").cumcount(), f.itertuples(), strict=True):
        slot, of = (names.index(bar.name), len(names)) if groups else (place, counts[bar.x])
        x, base = middles[shown.index(bar.x)] + (slot - (of - 1) / 2) * step, getattr(bar, "base", 0.0)
        if not np.isnan(bar.y):
            (box,) = axes.bar(
                x, bar.y - base, _BAR if step == 1 else step, bottom=base, zorder=2, **{**EDGE, **looks[bar.name]}
            )
        if not np.isnan(bar.y_low):
            reach = [[bar.y - bar.y_low], [bar.y_high - bar.y]]
            axes.errorbar([x], [bar.y], reach, linestyle="", ecolor="black", zorder=4, **WHISKER)
        if text := getattr(bar, "text", ""):
            top = float(np.nanmax([0.0, base, bar.y, bar.y_high]))
            texts.append((text_above(axes, x, top, text), top))
        if bar.mark:
            mark(texts[-1][0] if np.isnan(bar.y) else box, bar.mark)
    places = sum(sizes) - (not single) if shown else 1
    axes.set_xlim(-0.6, places - 0.4)
    if not groups:
        sheet.share_unit(axes)
    if texts:
        sheet.fits.append(lambda: fit_texts(sheet, axes, texts, 1.0))
    return middles


def text_above(axes: Axes, x: float, y: float, text: str) -> Text:
    """Write text that starts just above y, on white where a line or a neighbour would cross it."""
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
    place: Any = {"xytext": (0, 72 * PAD_IN), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    found = axes.annotate(text, (x, y), **place, color=INK, bbox=back, zorder=3, annotation_clip=False)
    found.set_in_layout(False)
    return found


def fit_texts(sheet: Sheet, axes: Axes, texts: Sequence[tuple[Text, float]], each: float) -> None:
    """Turn texts that are wider than their bars, and end the axis above the highest one."""
    (width, height), (left, right) = sheet.size_of(axes), axes.get_xlim()
    widths = [width_in(text.get_text()) for text, _ in texts]
    upright = max(widths) > 0.98 * each * width / (right - left)
    lines = [text.get_text().count("\n") + 1 for text, _ in texts]
    needed = [wide if upright else count * line_in() for wide, count in zip(widths, lines, strict=True)]
    free = [max(0.2, 1 - (inches + 2 * PAD_IN) / height) for inches in needed]
    low = axes.get_ylim()[0]
    if axes.get_yscale() == "log":
        axes.set_ylim(low, max(low * (top / low) ** (1 / share) for (_, top), share in zip(texts, free, strict=True)))
    else:
        axes.set_ylim(low, max(low + (top - low) / share for (_, top), share in zip(texts, free, strict=True)))
    for text, _ in texts:
        text.set_rotation(90 if upright else 0)


def name_groups(sheet: Sheet, axes: Axes, names: Sequence[str], middles: Sequence[float] = ()) -> None:
    """Names below groups: in lines where that makes room for them, else upright."""
    shown, places = [sheet.style.text(name) for name in names], list(middles or range(len(names)))
    axes.set_xticks(places, [""] * len(shown))  # whole names may be wider than the sheet
    axes.tick_params(axis="x", length=0)

    def fit() -> None:
        (left, right), width = axes.get_xlim(), sheet.size_of(axes)[0]
        between = [(right - left) / 2, *((other - one) / 2 for one, other in pairwise(places)), (right - left) / 2]
        rooms = [2 * min(halves) * width / (right - left) - _GAP_IN for halves in pairwise(between)]
        broken = [folded(name, room) for name, room in zip(shown, rooms, strict=True)]
        upright = any(width_in(name) > room for name, room in zip(broken, rooms, strict=True))
        rows = [max(1, floor(room / line_in())) for room in rooms]
        turned = [_in_rows(name, count) for name, count in zip(shown, rows, strict=True)]
        axes.set_xticks(places, turned if upright else broken)
        axes.tick_params(axis="x", rotation=90 if upright else 0)

    if shown:
        sheet.fits.append(fit)


def _in_rows(name: str, rows: int) -> str:
    """A long name in at most so many lines, broken after commas and before numbers."""
    broken = name.replace(", ", ",\n").replace(" deferral=", "\ndeferral=")
    return broken if broken.count("\n") < rows else name


def name_lines(axes: Axes, names: Sequence[str], room_in: float = 1.6) -> None:
    """Names of lines to the left of axes."""
    axes.set_yticks(range(len(names)), [folded(name, room_in) for name in names])
    axes.tick_params(axis="y", length=0)


def swatches(looks: Mapping[str, Look]) -> list[Artist]:
    """Legend entries of bars."""
    return [Patch(**{**EDGE, **look}, label=name) for name, look in looks.items()]


def handles(looks: Mapping[str, Look], ring: object = None) -> list[Artist]:
    """Legend entries of curves, and of the ring around values of an outcome."""
    entries: list[Artist] = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    return [*entries, Line2D([], [], label=str(ring), linestyle="", **_RING)] if ring else entries


_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 6.4,
    "markerfacecolor": "none",
    "markeredgecolor": REFERENCE,
    "markeredgewidth": 0.4,
}
CROWDED = 24  # with more points on a curve its marks are smaller


def curves(axes: Axes, f: pd.DataFrame, looks: Mapping[Any, Look], *, bands: bool = False) -> None:
    """A curve with markers for each series. Intervals are whiskers, with `bands` also shaded from point to point.

    Rows with a `ring` have one; those that are a `reference` are a thin grey line without markers.
    """
    is_reference = f.get("reference", pd.Series(False, f.index)).astype(bool)
    for _, line in f[is_reference].groupby("name", sort=False):
        alone = "_" if len(line) == 1 else "None"
        xs, ys = line["x"].to_numpy(float), line["y"].to_numpy(float)
        (drawn,) = axes.plot(xs, ys, color=REFERENCE, linewidth=0.6, marker=alone, markersize=6.4, zorder=2)
        if alone == "_":
            mark(drawn, *line["mark"])
    for name, line in f[~is_reference].groupby("name", sort=False):
        look, xs, ys = dict(looks[name]), line["x"].to_numpy(float), line["y"].to_numpy(float)
        size = 0.5 if len(line) > CROWDED else 1.0
        if bands:
            low, high = line["y_low"].fillna(line["y"]), line["y_high"].fillna(line["y"])
            shade = {"color": look["color"], "alpha": 0.14, "linewidth": 0, "zorder": 1.5}
            axes.fill_between(xs, low.to_numpy(float), high.to_numpy(float), **shade)
        look["markersize"] = size * look.get("markersize", MARKER_PT)
        reaches = {"xerr": _reach(line, "x"), "yerr": _reach(line, "y")}
        drawn = axes.errorbar(xs, ys, **reaches, **{"zorder": 3} | WHISKER | look).lines[0]
        mark(drawn, *line["mark"])
        ringed = line[line["ring"].notna()] if "ring" in line else line[:0]
        if len(ringed):
            ring = _RING | {"markersize": size * _RING["markersize"]}
            axes.plot(ringed["x"].to_numpy(float), ringed["y"].to_numpy(float), linestyle="", zorder=4, **ring)


def points(axes: Axes, f: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    """A marker for each row with the whiskers that it has; `look` of a row changes that of its series."""
    for n, point in enumerate(f.itertuples()):
        row, own = f.iloc[[n]], getattr(point, "look", {})
        reaches = {"xerr": _reach(row, "x"), "yerr": _reach(row, "y")}
        look = {"zorder": 3} | WHISKER | dict(looks[point.name]) | {"linestyle": ""} | own
        mark(axes.errorbar([point.x], [point.y], **reaches, **look).lines[0], point.mark)


LOSSES = LinearSegmentedColormap.from_list("losses", ["#ffffff", "#a0bfdb", "#1d3f5e"])
# From what features lose together to what they gain together: light in between; numbers distinguish the two in grey.
SIGNED = LinearSegmentedColormap.from_list("signed", ["#c98a4b", "#f3e3d2", "#ffffff", "#dde9f3", "#4a76a3"])
NO_FACE = "#eeeeee"
CELL_IN = 0.16


def heat(
    sheet: Sheet, axes: Axes, f: pd.DataFrame, columns: Sequence[str], lines: Sequence[str], edge: str = "white"
) -> None:
    """Cells of column `x` and line `y` with their `text`, bold where `sure`, white where `dark`, and a smaller `note`.

    `face` is their colour. `columns` are named below, `lines` to the left.
    """
    written = []
    for cell in f.itertuples():
        look: Any = {"ha": "center", "va": "center_baseline", "color": "white" if cell.dark else INK}
        box = axes.add_patch(Rectangle((cell.x - 0.5, cell.y - 0.5), 1, 1, facecolor=cell.face, edgecolor=edge, lw=0.8))
        mark(box, cell.mark)
        weight, note = "bold" if cell.sure else "normal", getattr(cell, "note", "")
        written.append(axes.text(cell.x, cell.y - (0.2 if note else 0.0), cell.text, weight=weight, **look))
        if note:
            written.append(axes.text(cell.x, cell.y + 0.24, note, fontsize=tick_pt() - 1, **look))
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.tick_params(length=0)
    name_lines(axes, lines)
    for spine in axes.spines.values():
        spine.set_visible(False)
    sizes = {text: float(text.get_fontsize()) for text in written}

    def fit() -> None:
        each = 0.92 * sheet.size_of(axes)[0] / len(columns)
        for text, size in sizes.items():
            text.set_in_layout(False)
            wide = (
                1.08 * width_in(text.get_text(), size)
                if text.get_fontweight() == "bold"
                else width_in(text.get_text(), size)
            )
            text.set_fontsize(size * min(1.0, each / max(wide, 1e-6)))

    sheet.fits.append(fit)


def is_wide(low: float, high: float) -> bool:
    """Whether a linear axis would lose the smaller of these values."""
    return low > 0 and high > _WIDE * low


def span_axes(
    sheet: Sheet, axes: Axes, xs: Iterable[float], y: tuple[float, float] | None, *, log_y: bool, named: bool = True
) -> None:
    """Axes around `xs`, logarithmic where they are wide, and around `y`, from 0 unless `log_y`; ticks at every x."""
    ticks, (bottom, top) = sorted({*xs}) or [1.0], y or (1.0, 1.0)
    left, right, log_x = ticks[0], ticks[-1], is_wide(ticks[0], ticks[-1])
    room = (right / left) ** _MARGIN if log_x else _MARGIN * (right - left) or 1.0
    above = max(ABOVE, (top / bottom) ** _MARGIN) if log_y else ABOVE  # of many decades 12 % is less than a marker
    x_limits = (left / room, right * room) if log_x else (left - room, right + room)
    y_limits = (bottom / above if log_y else 0.0, top * above)
    set_axes(axes, x_limits, y_limits, log_x=log_x, log_y=log_y)
    set_ticks(sheet, axes, ticks, decades(*axes.get_ylim()) if log_y else round_ticks(axes.get_ylim()[1]), named=named)


def set_axes(
    axes: Axes, x: tuple[float, float], y: tuple[float, float], *, log_x: bool = False, log_y: bool = False
) -> None:
    """Limits and scales, `log_x` to the base of 2, `log_y` of 10. Limits that are one value open around it."""
    if log_x:
        axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log", base=10)
    axes.set_xlim(_opened(x, log=log_x))
    axes.set_ylim(_opened(y, log=log_y))


def _opened(limits: tuple[float, float], *, log: bool) -> tuple[float, float]:
    low, high = limits
    if low < high:
        return limits
    return (low / 2, high * 2) if log else (low - 1, high + 1)


def set_ticks(sheet: Sheet, axes: Axes, x: Sequence[float], y: Sequence[float], *, named: bool = True) -> None:
    """Ticks at these values, each `x` tick named where it has room, `y` ticks where `named`."""
    axes.xaxis.set_major_locator(FixedLocator(list(x)))
    axes.yaxis.set_major_locator(FixedLocator(list(y)))
    axes.yaxis.set_major_formatter(FixedFormatter([tick_name(value) if named else "" for value in y]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())

    def fit() -> None:
        width = sheet.size_of(axes)[0]
        places = [
            width * float((axes.transScale + axes.transLimits).transform((at, axes.get_ylim()[1]))[0]) for at in x
        ]
        axes.xaxis.set_major_formatter(FixedFormatter(_named_in_room(x, places)))

    fit()
    sheet.fits.append(fit)


def _named_in_room(values: Sequence[float], places: Sequence[float]) -> list[str]:
    """Names of every value, or of every second, third ... from the first where they would touch."""
    for step in range(1, len(values) + 1):
        names = [f"{value:g}" if n % step == 0 else "" for n, value in enumerate(values)]
        spans = [
            (at - width_in(name) / 2, at + width_in(name) / 2) for at, name in zip(places, names, strict=True) if name
        ]
        if all(right[0] - left[1] >= _GAP_IN for left, right in pairwise(spans)):
            return names
    return []


def tick_name(value: float) -> str:
    """`500`, `50k`: short enough for the room beside an axis."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between two positive numbers, and their doubles and fives where those are few."""
    tens = [10.0**n for n in range(floor(log10(low)), ceil(log10(high)) + 1)]
    shown = [ten for ten in tens if low <= ten <= high]
    finer = [ten * part for ten in tens for part in (1, 2, 5) if low <= ten * part <= high]
    return shown if len(shown) > 2 else finer


def round_ticks(top: float, count: int = 6, low: float = 0.0) -> list[float]:
    """At most so many steps of round numbers from `low` up to `top`."""
    ticks = MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(low, top)
    return [float(tick) for tick in ticks if low <= tick <= top]
