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

from ktbench.report.figures.sheet import LEFT_IN, PAGE_IN, RIGHT_IN, STYLE, PanelGrid, Sheet
from ktbench.report.figures.text_metrics import INK, LABEL_PT, line_in, width_in
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
_HEAD_IN, _FOOT_IN = 0.16, 0.2  # of a row: layer numbers above, ticks below
_NAME_IN = 0.16  # the name of the axis below the last row
_SPAN_IN = 0.11  # what half of all spans should get at least, in as many rows as that takes
_MOST_ROWS = 8
_PAD_IN = 0.05
_ROLES: tuple[Resource, Resource] = ("host", "device")
_UNSEEN = "inside a graph, not looked into"
_LEAST_SHARE = 0.005  # what rounds to 1 %


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A part of the step, from `begin_s` to `end_s`, drawn `per_s` inches a second."""

    begin_s: float
    end_s: float
    per_s: float

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
    with style.context(STYLE):
        figure = _figure(timeline, [*shares(timeline), *conditions])
        figure.add_title(headline, _answer(timeline))
        return figure


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


def _figure(timeline: Timeline, caption: Sequence[str]) -> Sheet:
    lanes, rows = timeline.resources, _rows(timeline)
    layout = PanelGrid(count=len(rows), columns=1, tall_in=len(lanes) * _LANE_IN, above_in=_HEAD_IN, below_in=_FOOT_IN)
    figure = Sheet(PAGE_IN, len(rows) * layout.line_in + _NAME_IN, caption, _swatches(timeline))
    every = layout.axes(figure, ["" for _ in rows])
    for axes, row in zip(every, rows, strict=True):
        _draw(axes, row, timeline, lanes)
    every[-1].set_xlabel("ms from the begin of the step")
    return figure


def _rows(timeline: Timeline) -> list[_Row]:
    """Equally long parts of the step, as few as leave half of the spans wide enough to see."""
    width = PAGE_IN - LEFT_IN - RIGHT_IN
    end_s = max(timeline.step_s, *(span.end_s for span in timeline.spans))
    typical_s = median(span.end_s - span.begin_s for span in timeline.spans) or end_s
    count = min(_MOST_ROWS, max(1, ceil(end_s * _SPAN_IN / typical_s / width)))
    each_s = end_s / count
    return [_Row(begin_s=n * each_s, end_s=(n + 1) * each_s, per_s=width / each_s) for n in range(count)]


def _swatches(timeline: Timeline) -> list[Artist]:
    kinds = {_known(span) for span in timeline.spans}
    return [Patch(**_look(kind), linewidth=0.5, label=kind) for kind in _LOOKS if kind in kinds]


def _known(span: Span) -> str:
    return span.kind if span.kind in _LOOKS else "other"


def _look(kind: str) -> dict[str, Any]:
    return {"edgecolor": INK} | _LOOKS[kind]


def _draw(axes: Axes, row: _Row, timeline: Timeline, lanes: Sequence[Resource]) -> None:
    axes.set_xlim(row.begin_s * 1e3, row.end_s * 1e3)
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([n + 0.5 for n in range(len(lanes))], list(lanes), fontsize=LABEL_PT)
    axes.set_xticks(_ticks(row))
    axes.tick_params(axis="y", length=0, pad=3)
    _draw_layers(axes, row, timeline)
    for span in timeline.spans:
        _draw_span(axes, row, span, lanes.index(span.resource))


def _ticks(row: _Row) -> list[float]:
    """Round milliseconds whose numbers stay on the page."""
    first, last = row.begin_s * 1e3, row.end_s * 1e3
    beyond = (width_in("000.0") / 2 - RIGHT_IN) / row.per_s * 1e3
    ticks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(first, last)
    return [float(tick) for tick in ticks if first <= tick <= last - beyond]


def _draw_span(axes: Axes, row: _Row, span: Span, lane: int) -> None:
    """The part of a span that lies in the row, with its name where there is room for it."""
    cut = row.cut(span.begin_s, span.end_s)
    if cut is None:
        return
    kind, (begin_s, end_s) = _known(span), cut
    corner = (begin_s * 1e3, lane + (1 - _BAR) / 2)
    box = Rectangle(corner, (end_s - begin_s) * 1e3, _BAR, linewidth=0.5, zorder=2, **_look(kind))
    axes.add_patch(box)
    name = _UNSEEN if kind == GRAPH else span.name
    if width_in(name) + 2 * _PAD_IN <= (end_s - begin_s) * row.per_s:
        backing = {"facecolor": _LOOKS[kind]["facecolor"], "edgecolor": "none", "pad": 0.8}
        color = "white" if kind in _DARK else INK
        middle = (begin_s + end_s) / 2 * 1e3, lane + 0.5
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": color, "bbox": backing}
        axes.text(*middle, name, zorder=3, **look)


def _draw_layers(axes: Axes, row: _Row, timeline: Timeline) -> None:
    """A rule where a layer begins, its number above the middle of what the row shows of it, as many as have room."""
    taken_s = -1.0
    for layer, begin_s, end_s in _layers(timeline):
        if row.begin_s <= begin_s < row.end_s:
            axes.axvline(begin_s * 1e3, color="#8c8c8c", linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
        cut, text = row.cut(begin_s, end_s), f"layer {layer}"
        if cut is None:
            continue
        if width_in(text) > (cut[1] - cut[0]) * row.per_s:
            text = str(layer)
        half_s = width_in(text) / 2 / row.per_s
        middle_s = min(max(sum(cut) / 2, row.begin_s + half_s), row.end_s - half_s)
        if middle_s - half_s >= taken_s:
            above = (middle_s * 1e3, -line_in() * 0.3 / _LANE_IN)
            axes.text(*above, text, ha="center", va="bottom", color=INK)
            taken_s = middle_s + half_s + _PAD_IN / row.per_s


def _layers(timeline: Timeline) -> Iterator[tuple[int, float, float]]:
    """Layers with begin and end on the device, which goes through one after the other; deferred work lags behind it."""
    lane = "device" if "device" in timeline.resources else timeline.resources[0]
    ends: dict[int, tuple[float, float]] = {}
    for span in timeline.spans:
        if span.resource == lane and span.layer is not None and span.kind != WAIT:
            begin_s, end_s = ends.get(span.layer, (span.begin_s, span.end_s))
            ends[span.layer] = min(begin_s, span.begin_s), max(end_s, span.end_s)
    yield from ((layer, *interval) for layer, interval in sorted(ends.items()))
