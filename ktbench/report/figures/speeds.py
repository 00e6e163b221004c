"""Recipes of what was timed: bars, curves over a setting, roles, serving, formats; the roofline, and all trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from ktbench.report.figures.cells import (
    Curves,
    Panel,
    axis_of,
    cells_of,
    series_in,
    setting_words,
    shown_as,
)
from ktbench.report.figures.labels import Labels, Rooflines, draw_read_time, draw_rooflines, roof_handle, rooflines
from ktbench.report.figures.marks import (
    CROWDED,
    Look,
    bars,
    curves,
    decades,
    ends,
    extent,
    fit_texts,
    frame_of,
    handles,
    is_wide,
    name_groups,
    points,
    round_ticks,
    set_axes,
    set_ticks,
    span_axes,
    swatches,
    text_above,
)
from ktbench.report.figures.sheet import PLOT_IN, Mark, Room, Sheet, mark, panel_sheet
from ktbench.report.figures.style import (
    COLUMN_IN,
    DARK,
    HOLLOW,
    LIGHT,
    PAGE_IN,
    REFERENCE,
    balanced,
    fills,
    label_pt,
    looks,
    packed,
    width_in,
)
from ktbench.report.text import names_by, not_drawn, some
from ktbench.results.formats import FormatPlane, format_of, plane_of_rows
from ktbench.results.quantities.text import number, unit_of
from ktbench.results.quantities.writing import MARK
from ktbench.results.row import Row, roof_rows, shows_speeds, stored_bits
from ktbench.results.settings import TOKENS, model_title, varying
from ktbench.results.usage import peak_spreads, read_spread
from ktbench.spec.features import BY_NAME, features_label
from ktbench.spec.record import Record, time_of
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import FigureStyle

if TYPE_CHECKING:
    from ktbench.report.documents import Document

_SLOTS_PER_IN = 9  # bars that a row of plots has room for


def breakdown(document: Document, style: FigureStyle) -> Sheet:
    """Bars: a group for each setting, over the baseline (KTransformers, SOSP'25, Fig. 14) or as speeds (12)."""
    rows = document.rows
    cells, speeds = cells_of(rows), shows_speeds(rows)
    arms = cells[cells["role"] == "arm"].copy()
    free = varying(list(arms.groupby("group", sort=False)["settings"].first()))
    arms["x"] = [_group_name(row, free) for row in arms["row"]]
    arms["why"] = [c.row.missing.get("speedup", c.why) if c.timed else c.why for c in arms.itertuples()]
    arms.loc[arms["is_baseline"].astype(bool) & arms["timed"].astype(bool), "speedup"] = 1.0
    f = shown_as(arms[arms["timed"].astype(bool)], "tokens_per_s" if speeds else "speedup")
    f["text"] = [
        f"{'~' * c.noisy}{number(c.y, 3)}{'' if speeds else '×'}{MARK * c.row.unproven}" for c in f.itertuples()
    ]
    absent = arms[~arms["cell"].isin(f["cell"])]
    names = ((f"{c.name}, {c.x}" if c.name in {*f["name"]} else c.name, c.why) for c in absent.itertuples())
    look, groups, most = fills(f["name"]), list(dict.fromkeys(f["x"])), max(f.groupby("x").size(), default=1)
    alone = len(groups) < 2
    slots = (most + 1) * len(groups) - 1
    width = style.width or (COLUMN_IN if slots <= (6 if alone else 8) else PAGE_IN)
    y = "tokens/s" if speeds else f"speed-up over {rows[0].baseline} (×)"
    y = y if width_in(y, label_pt()) <= PLOT_IN else "speed-up (×)"
    lines = packed(groups, lambda line: len(line) * (most + 1) <= _SLOTS_PER_IN * width) or [[]]
    sheet = Sheet(
        style, [document.table.figure_caption, *not_drawn(names)], [PLOT_IN] * len(lines), width=width,
        legend=() if alone else swatches(look),
    )  # fmt: skip
    for n, line in enumerate(lines):
        axes, part = sheet.axes_in(n), f[f["x"].isin(line)]
        if not speeds:
            axes.axhline(1, color="#222222", linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
        middles = bars(sheet, axes, part.assign(x=part["name"]) if alone else part, look)
        name_groups(sheet, axes, list(part["name"]) if alone else line, middles)
        sheet.name_axes(axes, line[0] if alone and line else "", y)
        if not line:
            axes.set_axis_off()
    sheet.fits.append(lambda: _to_one_scale(sheet.axes))
    return sheet


def _to_one_scale(every: Sequence[Axes]) -> None:
    """Lines of one panel end at the same height."""
    top = max(axes.get_ylim()[1] for axes in every)
    for axes in every:
        axes.set_ylim(top=top)


def _group_name(row: Row, free: Sequence[str]) -> str:
    """The settings that vary; where none does what the headline leaves open."""
    return ", ".join(_named(key, row.settings.get(key)) for key in free or ((TOKENS,) if row.is_layer else ()))


def _named(key: str, value: object) -> str:
    if key == "model.layers":
        return f"{value} layer{'' if value == 1 else 's'}"
    if key == "model":
        return model_title(str(value))
    return str(value) if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"


def throughput(document: Document, style: FigureStyle) -> Sheet:
    """A panel for each precision, all to one scale, with the roofs of its arms (KTransformers, SOSP'25, Fig. 3, 7)."""
    every = Curves(cells_of(document.rows))
    caption = [document.table.figure_caption, *every.absences("tflops")]
    return _throughput(every.of("tflops"), document.rows, caption, style)


def _titles(panels: Sequence[Panel], rows: Sequence[Row]) -> list[str]:
    """The titles of panels; none where the headline says the one precision that there is."""
    alone = len(panels) == 1 and len({row.spec.precision for row in rows}) == 1
    return [""] if alone else [panel.title for panel in panels]


def throughput_change(before: Sequence[Row], after: Sequence[Row], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """The throughput of run B with that of run A in grey."""
    old, new = (
        [(p, p.points[~p.points["reference"]]) for p in Curves(cells_of(r)).of("tflops")] for r in (before, after)
    )
    grey = {panel.precision: points.assign(reference=True, name=points["name"] + ", A") for panel, points in old}
    panels = [panel._replace(points=pd.concat([own, grey.get(panel.precision, own[:0])])) for panel, own in new]
    return _throughput(panels, after, caption, style)


def _throughput(panels: Sequence[Panel], rows: Sequence[Row], caption: Sequence[str], style: FigureStyle) -> Sheet:
    f, look = pd.concat([panel.points for panel in panels]), looks(series_in(panels))
    roofs = [rooflines(panel.rows, rows) for panel in panels]
    units = [", ".join(dict.fromkeys(unit_of(row.spec.dtype) for row in panel.rows)) for panel in panels]
    named = _titles(panels, rows)
    titles = [f"{title} ({unit})" if title else "" for title, unit in zip(named, units, strict=True)]
    sheet, every, begins = panel_sheet(style, caption, titles, Room(most=4, least_in=1.45), _roofed(f, look, rows))
    xs = sorted({*f["x"]}) or [1.0]
    x, (low, high) = (xs[0] / 1.6, xs[-1] * 1.6), extent(f) or (0.1, 1.0)
    peaks = ((roof.slope, peak.mid) for roof in roofs for peak in roof.peaks.values())
    reached = [peak / 1e12 for slope, peak in peaks if slope is None or peak < slope.mid * x[1]]
    y = low / 1.6, max([high, *reached]) * 2.0
    ticks = [at for at in xs if log2(at).is_integer()] if len(xs) > CROWDED else xs
    for n, (panel, roof, axes) in enumerate(zip(panels, roofs, every, strict=True)):
        set_axes(axes, x, y, log_x=True, log_y=True)
        set_ticks(sheet, axes, ticks, decades(*y), named=begins(n))
        sheet.name_axes(axes, TOKENS, "10¹² operations per second" if begins(n) else "")
        draw_rooflines(sheet, axes, roof)
        _curves(sheet, axes, panel.points, look)
    return sheet


def _roofed(f: pd.DataFrame, look: Mapping[str, Look], rows: Sequence[Row]) -> list[Any]:
    """Legend entries of curves, of a ring, and of the roofs of rows."""
    ring = next(iter(f.loc[f["ring"].notna(), "ring"]), None) if len(f) else None
    provenance = next(
        (row.provenance for row in roof_rows(rows) if row.provenance and "roof_share" in row.values), None
    )
    return [*handles(look, ring), *([roof_handle(provenance)] if provenance else [])]


def _curves(sheet: Sheet, axes: Axes, part: pd.DataFrame, look: Mapping[str, Look], *, bands: bool = False) -> None:
    """The curves of a panel, and the names of references at the level of their right ends or along their first half."""
    curves(axes, part, look, bands=bands)

    def name(line: pd.DataFrame) -> None:
        places = list(zip(line["x"], line["y"], strict=True))
        first, middle, last = places[0], places[len(places) // 2], places[-1]
        also = ((first, middle),) if len(places) > 2 else ()
        Labels(sheet, axes).along(str(line["name"].iloc[0]), (middle[0], last[1]), last, REFERENCE, also=also)

    for _, line in part[part["reference"].astype(bool)].groupby("name", sort=False):
        sheet.labels.insert(0, lambda line=line: name(line))  # type: ignore[misc]


_FAR = 2.0  # curves that lie further above the fastest one are left out, as its shape would be lost


def latency(document: Document, style: FigureStyle) -> Sheet:
    """A panel for each precision to its own scale from zero, with the time that reading the weights takes."""
    rows, every = document.rows, Curves(cells_of(document.rows))
    panels, beyond = [], list[str]()
    for panel in every.of("step_s", 1e3):
        least = panel.points.groupby("name")["y"].transform("min")
        near = least <= _FAR * least[~panel.points["reference"]].min()
        beyond += _beyond(panel.precision, panel.points[~near])
        panels.append(panel._replace(points=panel.points[near]))
    look = looks(series_in(panels))
    legend = _roofed(pd.concat([panel.points for panel in panels]), look, rows)
    caption = [document.table.figure_caption, *every.absences("step_s"), *beyond]
    sheet, axes_of, begins = panel_sheet(style, caption, _titles(panels, rows), Room(most=4), legend)
    read = read_spread(record for row in roof_rows(rows) for record in row.records)
    for n, (panel, axes) in enumerate(zip(panels, axes_of, strict=True)):
        top, xs = 1.15 * (extent(panel.points) or (0.0, 1.0))[1], sorted({*panel.points["x"]})
        set_axes(axes, (0.0, 1.06 * max(xs, default=1.0)), (0.0, top))
        set_ticks(sheet, axes, xs, round_ticks(top))
        sheet.name_axes(axes, TOKENS, "ms per layer" if begins(n) else "")
        weights = {row.spec.tokens_per_expert: row.work.weight_bytes for row in reversed(panel.rows) if row.work}
        if read and weights:
            draw_read_time(sheet, axes, read, sorted(weights.items()))
        _curves(sheet, axes, panel.points, look)
    return sheet


def _beyond(precision: str, f: pd.DataFrame) -> Iterator[str]:
    """Which curves an axis leaves out, and between what times they run."""
    spans = f.groupby("name", sort=False)["y"].agg(["min", "max"])
    texts = [f"{name}, {number(low, 3)} to {number(high, 3)} ms" for name, low, high in spans.itertuples()]
    if texts:
        yield f"Beyond the axis of {precision}: {'; '.join(texts)}."


def depth(document: Document, style: FigureStyle) -> Sheet:
    """Speed over the setting with the most values: panels by precision to one scale, a line for each arm."""
    cells = cells_of(document.rows)
    axis = axis_of(cells)
    every = Curves(cells, axis)
    panels = every.of("tokens_per_s")
    f, look = pd.concat([panel.points for panel in panels]), looks(series_in(panels))
    caption = [document.table.figure_caption, *every.absences("tokens_per_s")]
    titles = _titles(panels, document.rows)
    sheet, axes_of, begins = panel_sheet(style, caption, titles, Room(most=4), _roofed(f, look, ()))
    log_y = all(is_wide(*(extent(panel.points) or (0.0, 0.0))) for panel in panels)
    for n, (panel, axes) in enumerate(zip(panels, axes_of, strict=True)):
        span_axes(sheet, axes, panel.points["x"], extent(f), log_y=log_y)
        sheet.name_axes(axes, axis.name, "tokens/s" if begins(n) else "")
        _curves(sheet, axes, panel.points, look, bands=True)
    return sheet


_SERVED = {
    "output, tokens/s": ("output_per_s", 1), "first token p50, s": ("ttft_p50_s", 1),
    "between tokens p50, ms": ("itl_p50_s", 1e3), "a user's output, tokens/s": ("user_per_s", 1),
    "first token p99, s": ("ttft_p99_s", 1), "between tokens p99, ms": ("itl_p99_s", 1e3),
}  # fmt: skip


def serving(document: Document, style: FigureStyle) -> Sheet:
    """A panel for each rate and latency, a line for each arm, over the setting with the most values."""
    cells = cells_of(document.rows)
    axis = axis_of(cells)
    every = Curves(cells, axis)
    drawn = [(title, panel) for title, quantity in _SERVED.items() for panel in every.of(*quantity)]
    several = len(drawn) > len(_SERVED)
    titles = [f"{title}, {panel.precision}" if several else title for title, panel in drawn]
    look = looks(series_in(panel for _, panel in drawn))
    caption = [document.table.figure_caption, *every.absences("output_per_s")]
    sheet, axes_of, _ = panel_sheet(style, caption, titles, Room(most=3, width=PAGE_IN), handles(look))
    for (_, panel), axes in zip(drawn, axes_of, strict=True):
        reached = extent(panel.points)
        span_axes(sheet, axes, panel.points["x"], reached, log_y=is_wide(*(reached or (0.0, 0.0))))
        sheet.name_axes(axes, axis.name)
        _curves(sheet, axes, panel.points, look, bands=True)
    return sheet


def interactivity(document: Document, style: FigureStyle) -> Sheet:
    """Tokens/s of one user from left to right, of all upwards; the numbers are those of the setting that varies."""
    cells = cells_of(document.rows)
    axis = axis_of(cells)
    every = Curves(cells, axis)
    f = pd.concat([panel.points for panel in every.of("output_per_s")])
    f = f[~f["reference"] & f["user_per_s"].notna()] if "user_per_s" in f else f[:0]
    f = f.rename(columns={"x": "at"}).assign(**{f"x{end}": f.get(f"user_per_s{end}") for end in ("", "_low", "_high")})
    look = looks(f["name"])
    front: dict[str, Any] = {"color": REFERENCE, "linewidth": 2.4, "alpha": 0.5}
    entries = [
        *handles(look),
        Line2D([], [], label="frontier", **front),
        Line2D([], [], label=f"numbers: {axis.name}", linestyle=""),
    ]
    caption = [document.table.figure_caption, *every.absences("user_per_s")]
    sheet = Sheet(style, caption, [3.0], legend=entries)
    axes = sheet.axes_in(0)
    if not len(f):
        axes.set_axis_off()
        return sheet
    curves(axes, f, look)
    axes.plot(*zip(*frontier(list(zip(f["x"], f["y"], strict=True))), strict=True), zorder=1.5, **front)
    (_, right), (_, top) = extent(f, "x") or (0.0, 1.0), extent(f) or (0.0, 1.0)
    set_axes(axes, (0.0, 1.08 * right), (0.0, 1.08 * top))
    set_ticks(sheet, axes, round_ticks(1.08 * right, 8), round_ticks(1.08 * top, 8))
    sheet.name_axes(axes, "output of one user, tokens/s", "output of all users, tokens/s")

    def label() -> None:
        labels = Labels(sheet, axes)
        for point in f.itertuples():
            labels.at_marker(number(point.at, 3).rstrip("0").rstrip("."), (point.x, point.y))

    sheet.labels.append(label)
    return sheet


def frontier(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points (x, y) those that no other exceeds in one without being below it in the other, by x."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(places, key=lambda place: (-place[0], -place[1])):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found[::-1]


_SHARES: dict[str, tuple[str, Look]] = {
    "host busy": ("host_busy", DARK), "device busy": ("device_busy", LIGHT), "both at once": ("overlap", HOLLOW),
}  # fmt: skip
_SPEED: dict[str, Any] = {"color": "#000000", "marker": "o", "markersize": 3.4, "linewidth": 1.0}


def roles(document: Document, style: FigureStyle) -> Sheet:
    """Speed over how busy the roles were, arm beside arm: what KTransformers (SOSP'25) gives with Fig. 10."""
    cells = cells_of(document.rows)
    arms = cells[cells["role"] == "arm"]
    groups = [group for _, group in arms.groupby("group", sort=False)]
    shown = {name: look for name, (quantity, look) in _SHARES.items() if arms[quantity].notna().any()}
    alone = len(groups) == 1 and len(groups[0]) <= 10
    width = style.width or (COLUMN_IN if alone else PAGE_IN)
    columns = balanced(len(groups), min(3, int(width / 1.6)))
    lines, each = -(-len(groups) // columns), 2 if shown else 1
    legend = [Line2D([], [], label="tokens/s", **_SPEED), *swatches(shown)] if shown else ()
    sheet = Sheet(
        style,
        [document.table.figure_caption, *_without_roles(arms)],
        [1.15, 0.8][:each] * lines,
        columns=columns,
        width=width,
        legend=legend,
    )
    titles = setting_words(arms) if len(groups) > 1 else [""]
    for n, (group, title) in enumerate(zip(groups, titles, strict=True)):
        line, column = divmod(n, columns)
        ladder = _is_ladder(group)
        names = [str(row.features["deferral"]) if ladder else row.shown for row in group["row"]]
        axes = sheet.axes_in(each * line, column, column + 1, title)
        _speeds_of_roles(sheet, axes, group.assign(x=range(len(group))), ladder=ladder)
        if shown:
            axes.set_xticks(range(len(names)), [""] * len(names))
            axes = sheet.axes_in(each * line + 1, column, column + 1)
            parts = [shown_as(group, _SHARES[name][0], 100).assign(name=name) for name in shown]
            f = pd.concat(parts)
            bars(
                sheet,
                axes,
                f.assign(x=f["cell"], y_low=np.nan, y_high=np.nan),
                shown,
                list(group["cell"]),
            )
            axes.set_ylim(0, 105)
            axes.set_yticks([0, 50, 100])
            axes.set_xlim(-0.6, len(group) - 0.4)
            sheet.name_axes(axes, y="% of the step")
        name_groups(sheet, axes, names)
        if ladder:
            top_k = group["spec"].iloc[0].model.shape.top_k
            sheet.name_axes(axes, f"experts deferred, of {top_k} a token", axes.get_ylabel())
    return sheet


def _is_ladder(group: pd.DataFrame) -> bool:
    """Whether the arms differ in how many experts they defer and in nothing else."""
    off = BY_NAME["deferral"].off
    return len({features_label({**row.features, "deferral": off}) for row in group["row"]}) == 1 < len(group)


def _speeds_of_roles(sheet: Sheet, axes: Axes, group: pd.DataFrame, *, ladder: bool) -> None:
    """Medians with their intervals from zero up, each with its number where that has room."""
    f = shown_as(group, "tokens_per_s").assign(name="tokens/s")
    curves(axes, f.assign(ring=None), {"tokens/s": _SPEED | {"linestyle": ""}})
    joined = f[[ladder and row.features["deferral"] != "auto" for row in f["row"]]]
    axes.plot(joined["x"].to_numpy(float), joined["y"].to_numpy(float), zorder=2, **_SPEED | {"marker": ""})
    axes.set_xlim(-0.6, len(group) - 0.4)
    axes.set_ylim(0, (extent(f) or (0.0, 1.0))[1])
    tops = f["y_high"].fillna(f["y"])
    texts = [
        (text_above(axes, c.x, top, f"{'~' * c.noisy}{number(c.y, 3)}"), top)
        for c, top in zip(f.itertuples(), tops, strict=True)
    ]
    if texts:
        sheet.fits.append(lambda: fit_texts(sheet, axes, texts, 0.95))
    sheet.name_axes(axes, y="tokens/s")


def _without_roles(arms: pd.DataFrame) -> list[str]:
    """For each reason the arms without a speed or without the times of their roles."""
    untimed = not_drawn((c.row.shown, c.why) for c in arms.itertuples() if not c.timed)
    alone = [row for row in arms["row"] if row.timed and row.interval("host_busy") is None]
    unshared = names_by((row.shown, row.missing.get("roles", "the roles share their cores")) for row in alone)
    shared = any(row.interval("host_busy") for row in arms["row"])
    return [
        *untimed,
        *(f"No shares{f' of {some(names)}' if shared else ''}: {why}." for why, names in unshared.items()),
    ]


_BITS_PT = 1.5  # of a marker, times the root of its bits
_HEIGHTS = {"kl": "KL against the baseline (nats/token)", "bits": "bits a weight"}


def formats(document: Document, style: FigureStyle) -> Sheet:
    """The bits of a weight over the speed."""
    cells = cells_of(document.rows)
    absent = cells[(cells["role"] == "arm") & ~cells["timed"].astype(bool)]
    names = ((format_name(c.row, document.rows), c.why) for c in absent.itertuples())
    return draw_formats(plane_of_rows(document.rows), [document.table.figure_caption, *not_drawn(names)], style)


def draw_formats(plane: FormatPlane, caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A marker for each format, a panel for each phase; the larger a marker, the more bits; filled: not beaten."""
    every = [*(point.row for point in plane.points), *plane.references]
    works = list(dict.fromkeys(_work(row.spec) for row in every)) or [""]
    f = frame_of(
        ends("x", p.speed) | ends("y", p.height) | {
            "name": format_name(p.row, every), "mark": Mark(key=(p.row.cell,)), "best": p.is_best,
            "work": _work(p.row.spec),
            "look": _bits_look(stored_bits(p.row), is_best=p.is_best) | {"ecolor": "#bcd0e2"},
        } for p in plane.points
    )  # fmt: skip
    bits = [stored_bits(row) for row in every]
    sizes = [one for one in (4, 8, 16) if bits and min(bits) / 2 <= one <= 2 * max(bits)]
    legend = [Line2D([], [], label=f"{one} bits a weight", **_bits_look(one, is_best=False)) for one in sizes]
    legend.append(Line2D([], [], label="filled: none is faster and lower", linestyle=""))
    sheet, axes_of, _ = panel_sheet(style, caption, works, Room(tall_in=2.0, width=COLUMN_IN), legend)
    for work, axes in zip(works, axes_of, strict=True):
        part = f[f["work"] == work] if len(f) else f
        sheet.name_axes(axes, "tokens/s", _HEIGHTS[plane.quantity])
        if len(part):
            _format_panel(sheet, axes, part, [row for row in plane.references if _work(row.spec) == work], every)
        else:
            axes.set_axis_off()
    return sheet


def _bits_look(bits: float, *, is_best: bool) -> dict[str, Any]:
    fill = "#35688f" if is_best else "white"
    size = _BITS_PT * bits**0.5
    return {
        "color": "#35688f",
        "linestyle": "",
        "marker": "o",
        "markersize": size,
        "markerfacecolor": fill,
        "markeredgewidth": 0.8,
    }


def _work(spec: RunSpec) -> str:
    work = spec.workload
    if work.phase == "layer":
        return f"one layer, {work.batch} tokens"
    batch = f", batch {work.batch}" if work.batch > 1 else ""
    return f"{work.phase} {'of' if work.phase == 'prefill' else 'after'} {work.prompt} tokens{batch}"


def format_name(row: Row, rows: Sequence[Row]) -> str:
    """The format, and the arm where there are several."""
    arms = {one.shown for one in rows if one.role == "arm"}
    return format_of(row) if len(arms) == 1 else f"{format_of(row)} {row.shown}"


def _format_panel(sheet: Sheet, axes: Axes, f: pd.DataFrame, references: Sequence[Row], every: Sequence[Row]) -> None:
    speeds = {format_name(row, every): (row.tokens_per_s.mid, row.cell) for row in references if row.tokens_per_s}
    left, right = extent(f, "x") or (0.0, 1.0)
    left, right = min([left, *(x for x, _ in speeds.values())]), max([right, *(x for x, _ in speeds.values())])
    f = f.assign(y_low=f["y_low"].where(f["y_low"] > 0, f["y"]))  # 0: to the axis
    low, high = extent(f) or (0.1, 1.0)
    room, factor = 0.12 * (right - left), max((high / low) ** 0.12, 1.3)
    set_axes(axes, (left - room, right + room), (low / factor, high * factor), log_y=True)
    set_ticks(sheet, axes, round_ticks(axes.get_xlim()[1], 5, axes.get_xlim()[0]), decades(*axes.get_ylim()))
    for speed, cell in speeds.values():
        line = axes.axvline(speed, color=REFERENCE, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        mark(line, Mark(key=(cell,)))
    points(axes, f, {name: {} for name in f["name"]})

    def label() -> None:
        labels = Labels(sheet, axes)
        for point in f.sort_values("best", ascending=False, kind="stable").itertuples():
            labels.led_to_marker(point.name, (point.x, point.y))
        for name, (speed, _) in speeds.items():
            labels.along(name, (speed, axes.get_ylim()[0]), (speed, axes.get_ylim()[1]), REFERENCE)

    sheet.labels.append(label)


def roofline(rows: Sequence[Row], style: FigureStyle) -> Sheet | None:
    """A panel for each machine, a point for each cell; None where no cell says its work next to sampled roofs.

    Arithmetic that cells did over that for each byte of weights, against the roofs: Williams, Waterman and Patterson,
    Roofline, CACM 52(4), 2009. Steps whose host role reads no weights have no place on the axis.
    """
    found = [
        row
        for row in rows
        if row.role == "arm"
        and row.step_s
        and "roof_share" in row.values
        and row.work
        and row.work.flops
        and row.work.weight_bytes
    ]
    if not found:
        return None
    look = {name: one | {"linestyle": ""} for name, one in looks(row.shown for row in found).items()}
    machines = dict.fromkeys("this machine" if row.spec.machine is None else row.spec.machine.title for row in found)
    without = sum(row.role == "arm" and row.timed for row in rows) - len(found)
    how = (
        "sampled next to the trials: median, shaded from least to most"
        if "measured" in {r.provenance for r in found}
        else "as described"
    )
    caption = [
        f"Operations per second over operations per byte of weights, a point for each cell; dashed: roofs, {how}.",
        *([f"{without} timed cells report no work or have no roof and are not drawn."] if without else []),
    ]
    titles = list(machines) if len(machines) > 1 else [""]
    sheet, axes_of, _ = panel_sheet(style, caption, titles, Room(tall_in=2.4, width=PAGE_IN), handles(look))
    for name, axes in zip(machines, axes_of, strict=True):
        mine = [r for r in found if name == ("this machine" if r.spec.machine is None else r.spec.machine.title)]
        _roofline_panel(sheet, axes, mine, look)
    return sheet


def _roofline_panel(sheet: Sheet, axes: Axes, rows: Sequence[Row], look: Mapping[str, Look]) -> None:
    records = [record for row in rows for record in row.records]
    read, peaks = read_spread(records), peak_spreads(records)
    assert read is not None, "a share of a roof needs a roof"
    f = frame_of(
        {"name": r.shown, "x": r.work.flops / r.work.weight_bytes, "y": (r.flops_per_s or 0.0) / 1e12}
        | {"mark": Mark(key=(r.cell,))}
        for r in rows if r.work
    )  # fmt: skip
    xs = [*f["x"], *(peak.mid / read.mid for peak in peaks.values())]
    x = min(xs) / 2, max(xs) * 2
    ys = [*f["y"], *([peak.mid / 1e12 for peak in peaks.values()] or [read.mid * x[1] / 1e12])]
    set_axes(axes, x, (min(ys) / 2, max(ys) * 2), log_x=True, log_y=True)
    set_ticks(sheet, axes, decades(*axes.get_xlim()), decades(*axes.get_ylim()))
    sheet.name_axes(axes, "operations per byte of weights", "10¹² operations per second")
    points(axes, f, look)
    draw_rooflines(sheet, axes, Rooflines(read=read, peaks=peaks, intensity=1.0))


def samples(rows: Sequence[Row], style: FigureStyle) -> Sheet | None:
    """How far trials are from the median of their cell, over time, above the read roofs; None without two trials.

    Where all trials began in the same second the axis counts them.
    """
    timed = [row for row in rows if row.timed and not row.simulated]
    by_clock = len({record.started for row in timed for record in row.records}) > 1
    f = _trials(timed, by_clock=by_clock)
    if len(f) < 2:
        return None
    sizes = sorted(abs(f["off"]))
    limit = max(2.0, 1.15 * sizes[int(0.98 * (len(sizes) - 1))])  # 2 %: noise alone; one outlier hides no others
    beyond = int((abs(f["off"]) > limit).sum())
    caption = [
        "The median step of each trial against the median of its cell, at the time when the trial began; a line joins "
        "the trials of a cell. Drift of the whole machine moves all cells alike.",
        *([f"{beyond} of {len(f)} trials lie beyond the axis and are drawn at its edge."] if beyond else []),
    ]
    dot: dict[str, Any] = {"linestyle": "", "markersize": 2.4}
    look = {name: one | dot for name, one in looks(row.shown for row in timed if row.role == "arm").items()}
    reads = f[f["reads"].map(len) > 0].explode("reads")
    sheet = Sheet(style, caption, [1.6, *([0.8] if len(reads) else [])], legend=handles(look))
    axes = sheet.axes_in(0)
    axes.axhline(0, color=REFERENCE, linewidth=0.6, zorder=1)
    minutes = by_clock and f["x"].iloc[-1] > 180
    f["x"], reads["x"] = (one["x"] / (60 if minutes else 1) for one in (f, reads))
    f["y"] = f["off"].clip(-limit, limit)
    for name, part in f.groupby("name", sort=False):
        own: dict[str, Any] = {"color": REFERENCE, "marker": "."} | dot | look.get(str(name), {})
        joined = [
            np.append(cell[["x", "y"]].to_numpy(float), [[np.nan] * 2], 0)
            for _, cell in part.groupby("cell", sort=False)
        ]
        axes.plot(*np.concatenate(joined).T, color=own["color"], linewidth=0.4, alpha=0.4, zorder=2)
        mark(
            axes.plot(part["x"].to_numpy(float), part["y"].to_numpy(float), zorder=3, clip_on=False, **own)[0],
            *part["mark"],
        )
    last = max(float(f["x"].iloc[-1]), 1.0 / (60 if minutes else 1))
    set_axes(axes, (-0.01 * last, 1.01 * last), (-limit, limit))
    sheet.name_axes(axes, y="% off the cell's median")
    if len(reads):
        axes.xaxis.set_major_formatter(NullFormatter())
        axes = sheet.axes_in(1)
        grey: Any = {"color": "#4d4d4d", "marker": ".", "alpha": 0.7} | dot
        mark(axes.plot(reads["x"].to_numpy(float), reads["reads"].to_numpy(float), **grey)[0], *reads["mark"])
        set_axes(axes, (-0.01 * last, 1.01 * last), (0.0, 1.08 * float(reads["reads"].max())))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        sheet.name_axes(axes, y="read roof, GB/s")
    sheet.name_axes(
        axes, f"{'minutes' if minutes else 'seconds'} since the first trial" if by_clock else "trial", axes.get_ylabel()
    )
    return sheet


def _trials(rows: Sequence[Row], *, by_clock: bool) -> pd.DataFrame:
    """Trials in the order in which they began; within one second in that of rounds and of the table.

    `x` is seconds, or trials, after the first, `off` the median step over that of its cell in percent off, `reads` are
    the read roofs before and after it in GB/s.
    """
    found = [(row, record) for row in rows for record in row.records if record.samples_s]
    found.sort(key=lambda pair: (_second(pair[1]), pair[1].round))
    first = _second(found[0][1]) if found else 0.0
    return pd.DataFrame(
        [
            {
                "name": row.shown, "cell": row.cell, "x": _second(record) - first if by_clock else float(n),
                "off": 100 * (median(record.samples_s) / row.step_s.mid - 1) if row.step_s else np.nan,
                "reads": [roof.read_bytes_per_s / 1e9 for roof in record.roofs], "mark": _trial_mark(row, record),
            }
            for n, (row, record) in enumerate(found)
        ]
    )  # fmt: skip


def _second(record: Record) -> float:
    return time_of(record.started).timestamp() if record.started else 0.0


def _trial_mark(row: Row, record: Record) -> Mark:
    """The cell of a trial, and which of its rounds this one is."""
    low, high = (f"{1e3 * step:.5g}" for step in (min(record.samples_s), max(record.samples_s)))
    spread = "" if low == high else f" ({low} to {high})"
    reads = [roof.read_bytes_per_s / 1e9 for roof in record.roofs]
    roof = f", read roof {median(reads):.4g} GB/s" if reads else ""
    return Mark(key=(row.cell,), note=f"round {record.round}: {1e3 * median(record.samples_s):.5g} ms{spread}{roof}")
