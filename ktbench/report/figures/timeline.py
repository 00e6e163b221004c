"""The picture of a timeline: a lane for each resource, folded into rows where its spans would get too narrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from statistics import median
from typing import Any

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.sheet import Sheet
from ktbench.report.figures.style import INK, PAGE_IN, label_pt, line_in, look_of, width_in
from ktbench.spec.sweep import FigureStyle
from ktbench.spec.timeline import GRAPH, WAIT, Resource, Span, Timeline

# Fills that differ in a grey print, hatches where two are next to each other in a lane. Kinds without a row here look
# like `other`.
_LOOKS: dict[str, dict[str, Any]] = {
    "attention": {"facecolor": "#dde9f3"},
    "shared": {"facecolor": "#a0bfdb", "hatch": "....."},
    "experts": {"facecolor": "#4a76a3"},
    "deferred": {"facecolor": "#c0d5e8", "hatch": "/////"},
    "other": {"facecolor": "#ffffff"},
    GRAPH: {"facecolor": "#ffffff", "edgecolor": "#8c8c8c", "linestyle": "--"},
    WAIT: {"facecolor": "#ffffff", "hatch": "xxxxxxx", "edgecolor": "#b0b0b0"},
}
_DARK = ("experts",)
_LANE_IN, _BAR = 0.3, 0.76  # a lane, and the share of it that spans fill
_HEAD_IN = 0.16  # of a row: layer numbers above its lanes
_SPAN_IN = 0.11  # what half of all spans should get at least, in as many rows as that takes
_MOST_ROWS = 8
_PAD_IN = 0.05
_ROLES: tuple[Resource, Resource] = ("host", "device")
_UNSEEN = "inside a graph, not looked into"
_LEAST_SHARE = 0.005  # what rounds to 1 %


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A part of the step, from `begin_s` to `end_s`."""

    begin_s: float
    end_s: float

    def cut(self, begin_s: float, end_s: float) -> tuple[float, float] | None:
        """What of an interval lies in the row; None where nothing does."""
        begin, end = max(begin_s, self.begin_s), min(end_s, self.end_s)
        return (begin, end) if begin < end else None


def timeline_figure(timeline: Timeline, headline: str = "", conditions: Sequence[str] = ()) -> Sheet:
    """Lanes with spans over milliseconds, layers numbered on top, and above them how busy the roles were.

    The `headline` stands over that, `conditions` are sentences to end the caption with. Raises ValueError for a
    timeline without spans.
    """
    if not timeline.spans:
        raise ValueError(f"timeline {timeline.title}: has no spans")
    with style.context(look_of(FigureStyle())):
        lanes, rows = timeline.resources, _rows(timeline)
        heights = [len(lanes) * _LANE_IN + _HEAD_IN] * len(rows)
        sheet = Sheet(FigureStyle(), [*shares(timeline), *conditions], heights, legend=_swatches(timeline))
        for n, row in enumerate(rows):
            _draw(sheet, sheet.axes_in(n), row, timeline, lanes)
        sheet.name_axes(sheet.axes[-1], "ms from the begin of the step")
        return sheet.settle(headline, _answer(timeline))


def _answer(timeline: Timeline) -> str:
    """`One step of 43.4 ms: host busy 33%, device busy 67%, both at once 14%`, of those roles that are seen."""
    seen = [role for role in _ROLES if role in timeline.resources and not timeline.is_unseen(role)]
    busy = [f"{role} busy {_percent(timeline.busy_s(role), timeline)}" for role in seen]
    both = [f"both at once {_percent(timeline.overlap_s(*_ROLES), timeline)}"] if len(seen) > 1 else []
    return f"One step of {timeline.step_s * 1e3:.3g} ms: {', '.join([*busy, *both])}" if seen else ""


def _percent(part_s: float, timeline: Timeline) -> str:
    return f"{part_s / (timeline.step_s or 1.0):.0%}"


def shares(timeline: Timeline) -> Iterator[str]:
    """What the roles did, in sentences: how long each was busy or waited, and how long two were busy at once."""
    yield f"{timeline.title}: one step of {timeline.step_s * 1e3:.2f} ms, {timeline.provenance}."
    each = [_share(timeline, resource) for resource in timeline.resources]
    seen = [resource for resource in timeline.resources if not timeline.is_unseen(resource)]
    overlaps = {pair: timeline.overlap_s(*pair) for pair in combinations(seen, 2)}
    least_s = _LEAST_SHARE * timeline.step_s
    shown = {pair: both_s for pair, both_s in overlaps.items() if both_s >= least_s or pair == _ROLES}
    both = [f"{one} and {other} at once {_percent(both_s, timeline)}" for (one, other), both_s in shown.items()]
    yield f"Of the step: {'; '.join([*each, *both])}."


def _share(timeline: Timeline, resource: Resource) -> str:
    if timeline.is_unseen(resource):
        return f"{resource} {_UNSEEN}"
    waiting_s = timeline.waiting_s(resource)
    waiting = f" and waiting {_percent(waiting_s, timeline)}" if waiting_s else ""
    return f"{resource} busy {_percent(timeline.busy_s(resource), timeline)}{waiting}"


def _rows(timeline: Timeline) -> list[_Row]:
    """Equally long parts of the step, as few as leave half of the spans wide enough to see."""
    width = PAGE_IN - 0.5
    end_s = max(timeline.step_s, *(span.end_s for span in timeline.spans))
    typical_s = median(span.end_s - span.begin_s for span in timeline.spans) or end_s
    count = min(_MOST_ROWS, max(1, ceil(end_s * _SPAN_IN / typical_s / width)))
    each_s = end_s / count
    return [_Row(begin_s=n * each_s, end_s=(n + 1) * each_s) for n in range(count)]


def _swatches(timeline: Timeline) -> list[Artist]:
    kinds = {_known(span) for span in timeline.spans}
    return [Patch(**_look(kind), linewidth=0.5, label=kind) for kind in _LOOKS if kind in kinds]


def _known(span: Span) -> str:
    return span.kind if span.kind in _LOOKS else "other"


def _look(kind: str) -> dict[str, Any]:
    return {"edgecolor": INK} | _LOOKS[kind]


def _draw(sheet: Sheet, axes: Axes, row: _Row, timeline: Timeline, lanes: Sequence[Resource]) -> None:
    """Boxes of spans; names in and above them wait until it is known what has room."""
    axes.set_xlim(row.begin_s * 1e3, row.end_s * 1e3)
    axes.set_ylim(len(lanes), -_HEAD_IN / _LANE_IN)
    axes.spines["left"].set_bounds(0, len(lanes))
    axes.set_yticks([n + 0.5 for n in range(len(lanes))], list(lanes), fontsize=label_pt())
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.tick_params(axis="y", length=0, pad=3)
    for span in timeline.spans:
        if (cut := row.cut(span.begin_s, span.end_s)) is not None:
            corner = (cut[0] * 1e3, lanes.index(span.resource) + (1 - _BAR) / 2)
            width = (cut[1] - cut[0]) * 1e3
            axes.add_patch(Rectangle(corner, width, _BAR, linewidth=0.5, zorder=2, **_look(_known(span))))
    sheet.labels.append(lambda: _write(axes, row, timeline, sheet.size_of(axes)[0] / (row.end_s - row.begin_s)))


def _write(axes: Axes, row: _Row, timeline: Timeline, per_s: float) -> None:
    """The names of spans and layers where there is room for them, `per_s` inches a second."""
    _draw_layers(axes, row, timeline, per_s)
    for span in timeline.spans:
        kind, cut = _known(span), row.cut(span.begin_s, span.end_s)
        name = _UNSEEN if kind == GRAPH else span.name
        if cut is None or width_in(name) + 2 * _PAD_IN > (cut[1] - cut[0]) * per_s:
            continue
        backing = {"facecolor": _LOOKS[kind]["facecolor"], "edgecolor": "none", "pad": 0.8}
        color = "white" if kind in _DARK else INK
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": color, "bbox": backing}
        axes.text(sum(cut) / 2 * 1e3, timeline.resources.index(span.resource) + 0.5, name, zorder=3, **look)


def _draw_layers(axes: Axes, row: _Row, timeline: Timeline, per_s: float) -> None:
    """A rule where a layer begins, its number above the middle of what the row shows of it, as many as have room."""
    taken_s = -1.0
    for layer, begin_s, end_s in _layers(timeline):
        if row.begin_s <= begin_s < row.end_s:
            rule: Any = {"color": "#8c8c8c", "linewidth": 0.5, "linestyle": (0, (4, 3)), "zorder": 1}
            axes.plot([begin_s * 1e3] * 2, [0, len(timeline.resources)], **rule)
        cut, text = row.cut(begin_s, end_s), f"layer {layer}"
        if cut is None:
            continue
        if width_in(text) > (cut[1] - cut[0]) * per_s:
            text = str(layer)
        half_s = width_in(text) / 2 / per_s
        middle_s = min(max(sum(cut) / 2, row.begin_s + half_s), row.end_s - half_s)
        if middle_s - half_s >= taken_s:
            axes.text(middle_s * 1e3, -line_in() * 0.3 / _LANE_IN, text, ha="center", va="bottom", color=INK)
            taken_s = middle_s + half_s + _PAD_IN / per_s


def _layers(timeline: Timeline) -> Iterator[tuple[int, float, float]]:
    """Layers with begin and end on the device, which goes through one after the other; deferred work lags behind it."""
    lane = "device" if "device" in timeline.resources else timeline.resources[0]
    ends: dict[int, tuple[float, float]] = {}
    for span in timeline.spans:
        if span.resource == lane and span.layer is not None and span.kind != WAIT:
            begin_s, end_s = ends.get(span.layer, (span.begin_s, span.end_s))
            ends[span.layer] = min(begin_s, span.begin_s), max(end_s, span.end_s)
    yield from ((layer, *interval) for layer, interval in sorted(ends.items()))
