"""Recipes of published numbers beside simulated and measured ones: bars and curves as in KTransformers (SOSP'25),
Fig. 3, 7, 10 to 12 and 14, scores, heat maps, and a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import style as looks_of_matplotlib
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ktbench.report.figures.answers import COUNTED, count_map, maps_abreast, published_cells, tasks_named
from ktbench.report.figures.marks import (
    CELL_IN,
    Look,
    bars,
    curves,
    decades,
    extent,
    frame_of,
    handles,
    is_wide,
    name_groups,
    set_ticks,
    span_axes,
    swatches,
)
from ktbench.report.figures.sheet import Mark, Room, Sheet, mark, panel_sheet
from ktbench.report.figures.style import (
    COLUMN_IN,
    DARK,
    HOLLOW,
    INK,
    PAGE_IN,
    REFERENCE,
    line_in,
    look_of,
    looks,
    tick_pt,
    width_in,
    wrapped,
)
from ktbench.report.text import counted
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import number
from ktbench.results.settings import calibration_title, described_title, group_by, model_title, varying
from ktbench.spec.published import NOT_OURS, Metric
from ktbench.spec.sweep import FigureStyle, arm_peer

if TYPE_CHECKING:
    from ktbench.report.documents import Document

_TALL_IN = 1.5
_FITTED = "simulated, used to fit"  # how bars call simulated values of numbers that constants were fitted on
# Of each provenance, in the order of a table: published is hollow, what is ours is filled.
_BARS: dict[str, Look] = {
    "published": HOLLOW,
    "simulated": DARK,
    _FITTED: {"facecolor": "#a9bfd6"},
    "measured here": {"facecolor": "#c0d5e8", "hatch": "|||||"},
}
_SCORED = ("published, all experts on time", "published, with Expert Deferral")
_SCORES: dict[str, Look] = {_SCORED[0]: {"facecolor": "#ffffff"}, _SCORED[1]: HOLLOW}
_RATIO = "engine.placement.ratio"
_FEWEST, _MOST_CURVES = 3, 4  # places on an axis that make a curve; curves that a panel has room for
Form = Literal["curves", "bars", "scores", "heat", "list"]


def published(document: Document, style: FigureStyle) -> Sheet:
    """The figure in the form that the numbers ask for."""
    return _FORMS[form_of(document.lines)](document.lines, [document.table.figure_caption], style)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperPanel:
    """Lines side by side, in the unit `metric`; `title` is what distinguishes their panel from the others."""

    title: str
    metric: Metric
    lines: tuple[PaperLine, ...]


def form_of(lines: Sequence[PaperLine]) -> Form:
    """How lines are drawn: over tokens or a share of experts as curves, else as bars; accuracy in forms of its own."""
    if any(line.phase != "accuracy" for line in lines):
        return "curves" if x_of(lines) else "bars"
    if any(line.metric == "relative %" for line in lines):
        return "heat"
    return "scores" if any("deferral" in line.arm for line in lines) else "list"


def x_of(lines: Sequence[PaperLine]) -> Callable[[PaperLine], float] | None:
    """Where lines stand on the axis of curves; a line without a place is at infinity. None where nothing makes curves.

    What lives with the device as a share is 0 where nothing does.
    """
    if len({line.tokens for line in lines} - {None}) >= _FEWEST:
        return lambda line: inf if line.tokens is None else line.tokens
    if len({conditions(line).get(_RATIO) for line in lines}) >= _FEWEST:
        return lambda line: float(conditions(line).get(_RATIO, 0))
    return None


def conditions(line: PaperLine) -> dict[str, str]:
    """The settings that a number was taken at, by dotted key."""
    words = (word.partition("=") for word in line.conditions.split())
    return {key: value for key, _, value in words}


def panels_of(lines: Sequence[PaperLine]) -> tuple[PaperPanel, ...]:
    """A panel for each model, machine and unit, in order of appearance, those of one machine together.

    In each base comes first, other systems follow, as in the paper.
    """
    machines = list(dict.fromkeys(line.machine for line in lines))
    ordered = sorted(lines, key=lambda line: machines.index(line.machine))
    found = group_by((_panel(line), line) for line in ordered)
    facts = [_facts(group) for group in found.values()]
    keys = _distinguishing(facts)
    titles = [", ".join(filter(None, (one[key] for key in keys))) for one in facts]
    if len({*titles}) == 1 < len(titles):
        titles = [_measure(group) for group in found.values()]
    return tuple(
        PaperPanel(
            title=title,
            metric=group[0].metric,
            lines=tuple(sorted(group, key=_rank)),
        )
        for title, group in zip(titles, found.values(), strict=True)
    )


def _measure(group: Sequence[PaperLine]) -> str:
    """What numbers of one unit are about: `host busy`; of a bare share the words of the number."""
    return group[0].metric.lstrip("% ") or group[0].what.rpartition(": ")[2]


def unit_of(metric: Metric) -> str:
    """The unit on an axis: `%` of any share."""
    return "%" if metric.startswith("%") else metric


def _facts(group: Sequence[PaperLine]) -> Mapping[str, str]:
    """The precision is ours, where there is one: other systems have formats of their own."""
    ours = next(filter(_is_ours, group), group[0])
    return {
        "model": model_title(ours.model),
        "precision": "" if _has_precisions(group) else ours.precision,
        "machine": described_title(ours.machine),
        "metric": ours.metric,
    }


def _panel(line: PaperLine) -> tuple[str, str, str]:
    return line.model, line.machine, line.metric


def _has_precisions(group: Sequence[PaperLine]) -> bool:
    """Whether numbers about us were taken at several."""
    return len({line.precision for line in group if line.id and _is_ours(line)}) > 1


def _distinguishing(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """The model, and as much more as distinguishes all panels; their axes name the unit."""
    every = ["model", "precision", "machine"]
    counts = [len({(*(one[key] for key in every[:n]), one["metric"]) for one in facts}) for n in (1, 2, 3)]
    return every[: counts.index(counts[-1]) + 1]


def _rank(line: PaperLine) -> int:
    if line.arm == "base":
        return 0
    return 2 if _is_ours(line) else 1


def _is_ours(line: PaperLine) -> bool:
    return line.arm not in NOT_OURS and not arm_peer(line.arm)


def namer(lines: Sequence[PaperLine], skip: Sequence[str] = ()) -> Callable[[PaperLine], str]:
    """What distinguishes lines beside their panel: the arm unless there is only one, and the settings that vary.

    Settings in `skip` are named elsewhere. A cell without a published number has no settings of its own.
    """
    settings = [conditions(line) for line in lines if line.id]
    keys = [key for key in varying(settings) if key not in skip]
    arms = len({line.arm for line in lines}) > 1 or not keys

    def words(line: PaperLine) -> Iterator[str]:
        if arms:
            yield line.arm
        values = _UNSET | conditions(line)
        yield from (_setting(key, values[key]) for key in keys if key in values)

    return lambda line: ", ".join(dict.fromkeys(words(line))) or line.arm


_UNSET = {"machine.gpus": "1"}  # settings that are something where others name them


def _setting(key: str, value: str) -> str:
    """A setting in words: `without AMX`, `2 GPUs`, `KTransformers 0.2 to 0.2.4`, `policy uniform`."""
    match key, value:
        case (("machine.amx_tflops" | "machine.amx_int8_tops"), "null"):
            return "without AMX"
        case "machine.gpus", count:
            return counted(int(count), "GPU")
        case "machine.domains", count:
            return counted(int(count), "NUMA domain")
        case "machine.gpu_tflops", peak:
            return f"GPU of {peak} TFLOPS"
        case "machine.calibration", name:
            return calibration_title(name)
    return f"{key.rpartition('.')[2].replace('_', ' ')} {value}"


def _mark(line: PaperLine) -> Mark:
    return Mark(key=(line.id, line.cell))


def values_of(line: PaperLine) -> dict[str, float]:
    """What there is of a line, by provenance."""
    every = {"published": line.published, "simulated": line.simulated, "measured here": line.measured}
    return {name: value for name, value in every.items() if value is not None}


def bar_namer(lines: Sequence[PaperLine]) -> Callable[[PaperLine], str]:
    """Arms with settings, with the batch and the phase where those vary, and the precision where it does in a panel.

    Other systems are named with their formats where those are not ours.
    """
    name = namer(lines)
    batches, phases = len({line.batch for line in lines}) > 1, len({line.phase for line in lines}) > 1
    panels = group_by((_panel(line), line) for line in lines)
    mixed = {panel for panel, group in panels.items() if _has_precisions(group)}
    ours = {panel: {line.precision for line in group if _is_ours(line)} for panel, group in panels.items()}

    def named(line: PaperLine) -> str:
        phase = [line.phase] if phases and line.phase != "decode" else []
        other = not _is_ours(line) and line.precision not in ours[_panel(line)]
        precision = [line.precision] if other or _panel(line) in mixed else []
        return ", ".join([name(line), *phase, *precision, *([f"batch {line.batch}"] if batches else [])])

    return named


_NAMES = {"prefill": "tokens of the prompt", "decode": "tokens of context", "layer": "tokens per expert"}


def x_name(panel: PaperPanel, x: Callable[[PaperLine], float]) -> str:
    """What the axis of curves counts."""
    first = panel.lines[0]
    return _NAMES[first.phase] if x(first) == first.tokens else "share of the experts at the device"


def split_panels(
    panels: Sequence[PaperPanel], name: Callable[[PaperLine], str], x: Callable[[PaperLine], float]
) -> Sequence[PaperPanel]:
    """One panel with more curves than it has room for as a panel for each; what is no curve stands in all of them."""
    if len(panels) > 1:
        return panels
    lines = panels[0].lines
    places = group_by((name(line), x(line)) for line in lines)
    curves = [label for label, found in places.items() if len({*found}) > 1]
    if len(curves) <= _MOST_CURVES:
        return panels
    return [
        replace(panels[0], title=label, lines=tuple(one for one in lines if name(one) not in {*curves} - {label}))
        for label in curves
    ]


def left_out(lines: Sequence[PaperLine], drawn: Sequence[PaperLine], why: str) -> list[str]:
    """How many of `lines` have values but are not among those `drawn`, which `why` describes."""
    count = sum(line not in drawn and bool(values_of(line)) for line in lines)
    return [f"Not drawn: {count} number{'' if count == 1 else 's'} {why}."] if count else []


def _bars(lines: Sequence[PaperLine], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A panel for each model, machine and unit; for each arm what was published, simulated and measured.

    Arms that nobody published and that have one value are left to the table: there is nothing beside it.
    """
    drawn = [line for line in lines if _has_partner(line)]
    name = bar_namer(drawn)
    panels = [
        (panel, [
            {"x": name(line), "name": _FITTED if line.fitted and of == "simulated" else of, "y": value}
            | {"mark": _mark(line)}
            for line in panel.lines for of, value in values_of(line).items()
        ]) for panel in panels_of(drawn)
    ]  # fmt: skip
    return _bar_panels(panels, _BARS, [*caption, *left_out(lines, drawn, "without a published value")], style)


def _has_partner(line: PaperLine) -> bool:
    return line.published is not None or len(values_of(line)) > 1


def _scores(lines: Sequence[PaperLine], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A panel for each model, a group for each benchmark: with all experts on time and with deferred ones."""
    panels = [
        (panel, [
            {"x": line.what.partition(" ")[0], "name": _SCORED["deferral" in line.arm], "y": line.published}
            | {"mark": _mark(line)}
            for line in panel.lines
        ]) for panel in panels_of([line for line in lines if line.published is not None])
    ]  # fmt: skip
    return _bar_panels(panels, _SCORES, caption, style)


def _bar_panels(
    panels: Sequence[tuple[PaperPanel, Sequence[Mapping[str, Any]]]],
    looks_of: Mapping[str, Look],
    caption: Sequence[str],
    style: FigureStyle,
) -> Sheet:
    frames = [frame_of(lines) for _, lines in panels]
    shown = {name: look for name, look in looks_of.items() if any(name in {*f["name"]} for f in frames)}
    narrow = len(frames) == 1 and len(frames[0]) <= 10
    needed = max(f["x"].nunique() for f in frames) * 1.5 * line_in() + 0.5
    sheet, every, begins = panel_sheet(
        style,
        caption,
        [panel.title for panel, _ in panels],
        Room(tall_in=_TALL_IN, most=3, least_in=max(1.5, needed), width=COLUMN_IN if narrow else PAGE_IN),
        swatches(shown),
    )
    units = {unit_of(panel.metric) for panel, _ in panels}
    order = list(shown)
    for n, ((panel, _), found, axes) in enumerate(zip(panels, frames, every, strict=True)):
        groups = list(dict.fromkeys(found["x"]))
        f = found.assign(y_low=np.nan, y_high=np.nan, text=[number(y, 3) for y in found["y"]])
        f = f.sort_values("name", key=lambda names: names.map(order.index), kind="stable")
        f = f.sort_values("x", key=lambda names, groups=groups: names.map(groups.index), kind="stable")
        axes.set_ylim(min(0.0, 1.1 * float(f["y"].min())), max(0.0, float(f["y"].max())) or 1.0)
        name_groups(sheet, axes, groups, bars(sheet, axes, f, shown))
        sheet.name_axes(axes, y=unit_of(panel.metric) if begins(n) or len(units) > 1 else "")
    return sheet


# How points of each provenance differ from the look of their arm: published ones are rings around the others.
_PROVENANCE: Mapping[str, Callable[[Look], dict[str, Any]]] = {
    "published": lambda look: {
        "markerfacecolor": "none", "markersize": 4.8, "linestyle": (0, (4, 2)), "linewidth": 0.7, "zorder": 4,
    },
    "simulated": lambda look: {"markerfacecolor": look["color"], "markersize": 2.8},
    "measured here": lambda look: {"marker": "*", "markerfacecolor": look["color"], "linestyle": "", "markersize": 6.0},
}  # fmt: skip


def _curves(lines: Sequence[PaperLine], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A panel for each model and machine; arms by shade and marker, published hollow and dashed, simulated filled.

    Curves of which nothing was published or measured beside a simulation are left to the table.
    """
    x = x_of(lines)
    assert x is not None
    placed = [line for line in lines if isfinite(x(line)) and values_of(line)]
    name = namer(placed, skip=(_RATIO,))
    compared = {name(line) for line in placed if _has_partner(line)}
    drawn = [line for line in placed if name(line) in compared]
    name = namer(drawn, skip=(_RATIO,))
    panels = split_panels(panels_of(drawn), name, x)
    arms = looks(name(line) for panel in panels for line in panel.lines)
    both = {(arm, of): dict(look) | change(look) for arm, look in arms.items() for of, change in _PROVENANCE.items()}
    narrow = len(panels) == 1 and len(arms) <= _MOST_CURVES
    absent = (*left_out(lines, placed, "without a place on the axis"), *left_out(placed, drawn, "of unpublished arms"))
    sheet, every, begins = panel_sheet(
        style,
        [*caption, *absent],
        [panel.title for panel in panels],
        Room(tall_in=_TALL_IN, most=3, least_in=1.55, width=COLUMN_IN if narrow else PAGE_IN),
        _curve_legend(arms, drawn),
    )
    for n, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        f = frame_of(
            {
                "name": (name(line), of),
                "x": x(line),
                **dict.fromkeys(("y", "y_low", "y_high"), value),
                "mark": _mark(line),
            }
            for of in _PROVENANCE
            for line in panel.lines
            if (value := values_of(line).get(of)) is not None
        ).sort_values(["x", "y"], kind="stable")
        order = {key: place for place, key in enumerate(both)}
        f = f.sort_values("name", key=lambda names: names.map(order), kind="stable")
        span_axes(sheet, axes, f["x"], extent(f), log_y=is_wide(*(extent(f) or (0.0, 0.0))))
        curves(axes, f, both)
        sheet.name_axes(axes, x_name(panel, x), panel.metric if begins(n) else "")
    return sheet


def _curve_legend(arms: Mapping[str, Look], lines: Sequence[PaperLine]) -> list[Artist]:
    """Arms, then provenances in grey."""
    shown = {provenance for line in lines for provenance in values_of(line)}
    grey: Look = {"color": "#555555", "linewidth": 1.0, "marker": "o", "markersize": 3.4, "markeredgewidth": 0.8}
    named: list[Artist] = [
        Line2D([], [], label=name, **dict(look) | {"markerfacecolor": look["color"]}) for name, look in arms.items()
    ]
    kinds = [Line2D([], [], label=of, **dict(grey) | change(grey)) for of, change in _PROVENANCE.items() if of in shown]
    return [*(named if len(named) > 1 else []), *kinds]


def _heat(lines: Sequence[PaperLine], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A panel for deferred and one for skipped experts, tasks below each other, their number to the right.

    The first column is the score without either, the others the change relative to it in percent.
    """
    tasks = tasks_named(lines)
    drawn = [(tasks, "", feature, published_cells(lines, feature)) for feature in COUNTED]
    abreast = maps_abreast(style.width or PAGE_IN, drawn)
    sheet = Sheet(style, caption, [len(tasks) * CELL_IN] * (2 // abreast), columns=abreast)
    for n, (_, _, feature, f) in enumerate(drawn):
        line, column = divmod(n, abreast)
        axes = sheet.axes_in(line, column, column + 1)
        count_map(sheet, axes, f, [""] * len(tasks) if column else tasks, feature)
    return sheet


def _list(lines: Sequence[PaperLine], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """One dot for each score beside the words of its conditions."""
    shown = [line for line in lines if line.published is not None]
    wide = style.width or PAGE_IN
    texts = [
        "\n".join(wrapped("; ".join(filter(None, (line.precision, line.what))), tick_pt(), 0.58 * wide))
        for line in shown
    ]
    heights = np.array([(text.count("\n") + 1.5) * line_in() for text in texts])
    places, values = heights.cumsum() - heights / 2, [line.published or 0.0 for line in shown]
    sheet = Sheet(style, caption, [float(heights.sum())])
    axes = sheet.axes_in(0)
    axes.set_ylim(float(heights.sum()), 0)
    room = 0.15 * (max(values) - min(values)) or 1.0
    axes.set_xlim(min(values) - room, max(values) + 2.5 * room)
    axes.hlines(places, *axes.get_xlim(), color="#cccccc", linewidth=0.4, zorder=1)
    mark(
        axes.plot(values, places, "o", markersize=4, markerfacecolor="white", markeredgecolor=INK, zorder=3)[0],
        *map(_mark, shown),
    )
    back = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
    for value, place in zip(values, places, strict=True):
        at: Any = {
            "xytext": (4, 0),
            "textcoords": "offset points",
            "va": "center",
            "color": INK,
            "bbox": back,
            "zorder": 2,
        }
        axes.annotate(number(value, 3), (value, place), **at)
    axes.set_yticks(places, texts, ha="left")
    axes.tick_params(axis="y", pad=72 * (max(map(width_in, texts)) + 0.03), length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    sheet.name_axes(axes, f"{shown[0].metric}, published")
    return sheet


_FORMS: Mapping[Form, Callable[[Sequence[PaperLine], Sequence[str], FigureStyle], Sheet]] = {
    "curves": _curves, "bars": _bars, "scores": _scores, "heat": _heat, "list": _list,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class UserPoint:
    """A report: tokens/s reported and simulated, with the interval of the latter; `fitted`: constants are, on it."""

    program: str
    reported: float
    simulated: float
    low: float
    high: float
    fitted: bool


def draw_users(users: Sequence[UserPoint], headline: str, caption: Sequence[str]) -> Sheet:
    """Reported speed from left to right, simulated upwards, on one logarithmic scale; hollow where fitted."""
    style = FigureStyle()
    look = {
        name: one | {"linestyle": "", "markersize": 3.2, "markerfacecolor": one["color"]}
        for name, one in looks(user.program for user in users).items()
    }
    equal: dict[str, Any] = {"color": REFERENCE, "linewidth": 0.8}
    reach = [end for user in users for end in (user.reported, user.low, user.high)]
    limits = min(reach) / 1.15, max(reach) * 1.15
    with looks_of_matplotlib.context(look_of(style)):
        sheet = Sheet(
            style, caption, [2.9], width=COLUMN_IN, legend=[*handles(look), Line2D([], [], label="equal", **equal)]
        )
        axes = sheet.axes_in(0)
        axes.plot(limits, limits, zorder=1, **equal)
        for user in users:
            axes.plot(
                [user.reported] * 2,
                [user.low, user.high],
                color=look[user.program]["color"],
                linewidth=0.5,
                alpha=0.45,
                zorder=2,
            )
            hollow = {"markerfacecolor": "white"} if user.fitted else {}
            axes.plot([user.reported], [user.simulated], zorder=3, **look[user.program] | hollow)
        axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
        set_ticks(sheet, axes, decades(*limits), decades(*limits))
        sheet.name_axes(axes, "reported, tokens/s", "simulated, tokens/s")
        return sheet.settle(headline)
