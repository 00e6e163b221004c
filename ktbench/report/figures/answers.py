"""Recipes of answers: scores as dots, heat maps by format and by experts deferred, speed against score, drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ktbench.report.accuracy_table import settings_shown, undrawn
from ktbench.report.accuracy_text import MOST_DOTS, measured_text
from ktbench.report.figures.labels import Labels
from ktbench.report.figures.marks import (
    CELL_IN,
    LOSSES,
    NO_FACE,
    curves,
    ends,
    extent,
    frame_of,
    handles,
    heat,
    name_lines,
    points,
    round_ticks,
    set_axes,
    set_ticks,
)
from ktbench.report.figures.sheet import Mark, Room, Sheet, panel_sheet
from ktbench.report.figures.speeds import draw_formats, format_name
from ktbench.report.figures.style import COLUMN_IN, PAGE_IN, REFERENCE, RULE, looks, width_in
from ktbench.report.text import not_drawn, score_text, signed
from ktbench.results.accuracy import (
    AccuracyRow,
    Result,
    absence_of,
    by_formats,
    formats_of,
    frontier_of,
    is_graded,
    parts_of_average,
)
from ktbench.results.answers import AVERAGE, PERPLEXITIES, TOP1, SubjectKind
from ktbench.results.answers import LOSSES as LOSS_METRICS
from ktbench.results.formats import plane_of_answers
from ktbench.results.paper import PaperLine
from ktbench.results.quantities.text import DASH
from ktbench.results.row import groups_of, place
from ktbench.results.scores import Estimate, ScoreVerdict
from ktbench.results.settings import model_title, shown_setting, without_precision
from ktbench.spec.features import BY_NAME
from ktbench.spec.record import KL
from ktbench.spec.sweep import FigureStyle, arm_features

if TYPE_CHECKING:
    from ktbench.report.documents import Document

_DOT_IN, _SPACE_IN = 0.11, 0.08
_X_NAMES = {KL: "KL to the baseline, nats", TOP1: "top-1 agreement, %"}


def accuracy(document: Document, style: FigureStyle) -> Sheet:
    """Scores by category or task, and their paired differences; where nothing is graded what is measured instead."""
    return scores(document.answers, [document.table.figure_caption], style)


def scores(rows: Sequence[AccuracyRow], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """Dots with intervals. Where lines by category would be too many, each arm has a line for its average."""
    names = _places(rows)
    if not any(row.results for row in rows):
        return _dots(names, _measures(rows), [""], caption, style)
    kind, parts = parts_of_average(rows)
    averages = len(rows) * (len(parts) + 1) > MOST_DOTS
    shown: list[tuple[str, SubjectKind]] = [] if averages else [(part, kind) for part in parts]
    found = [
        (n if averages else line, "" if averages else name, row.result(*where), _mark(row, *where))
        for line, where in enumerate([*shown, (AVERAGE, "average")])
        for n, (row, name) in enumerate(zip(rows, names, strict=True))
    ]
    values: dict[str, list[dict[str, Any]]] = {"score, %": [], "difference, points": []}
    for line, name, result, at in found:
        if result and result.score:
            values["score, %"].append(_dot(line, name, result.score, at, 100))
        if result and result.change:
            values["difference, points"].append(_dot(line, name, result.change.difference, at, 100))
    panels = [("", x_name, frame_of(dots)) for x_name, dots in values.items() if dots or x_name == "score, %"]
    lines = names if averages else [*(part.replace("_", " ") for part, _ in shown), AVERAGE]
    return _dots(lines, panels, [""] if averages else names, caption, style)


def drift(rows: Sequence[AccuracyRow], style: FigureStyle) -> Sheet:
    """Perplexity and drift from the baseline, a panel for each metric of each task."""
    text = measured_text(rows)
    return _dots(_places(rows), _measures(rows), [""], [f"{text[0].upper()}{text[1:]}."], style)


def _places(rows: Sequence[AccuracyRow]) -> list[str]:
    settings = settings_shown(rows)
    return [place(row.row, settings) for row in rows]


def _mark(row: AccuracyRow, subject: str, kind: SubjectKind) -> Mark:
    return Mark(key=(row.row.cell,) if kind == "average" else (row.row.cell, kind, subject))


def _dot(line: int, name: str, value: Estimate, at: Mark, factor: float) -> dict[str, Any]:
    return ends("x", value, factor) | {"line": line, "name": name, "mark": at}


def _measures(rows: Sequence[AccuracyRow]) -> list[tuple[str, str, pd.DataFrame]]:
    """Title, name of the axis, and dots of each metric of each task; the baseline has no drift from itself.

    Of losses the change of perplexity, which is paired, or perplexity where there is nothing to compare with.
    """
    paired = any(one.change for row in rows for one in row.measures)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line, row in enumerate(rows):
        for one in row.measures if not row.is_baseline or len(rows) == 1 else ():
            value = one.change if paired and one.metric in LOSS_METRICS else one.value
            factor = 100 if one.metric == TOP1 or (paired and one.metric in LOSS_METRICS) else 1
            if value is not None:
                found.setdefault((one.task, one.metric), []).append(
                    _dot(line, "", value, Mark(key=(row.row.cell,)), factor)
                )
    panels = [(task, _x_name(metric, paired=paired), frame_of(dots)) for (task, metric), dots in found.items()]
    return panels or [("", "nothing was measured", frame_of([]))]


def _x_name(metric: str, *, paired: bool) -> str:
    if metric not in LOSS_METRICS:
        return _X_NAMES[metric]
    return f"change of {PERPLEXITIES[metric]}, %" if paired else PERPLEXITIES[metric]


def _dots(
    lines: Sequence[str], panels: Sequence[tuple[str, str, pd.DataFrame]], names: Sequence[str], caption: Sequence[str],
    style: FigureStyle,
) -> Sheet:  # fmt: skip
    """Panels over the same `lines`; in each line the looks of `names` one below the other."""
    look = {name: one | {"linestyle": ""} for name, one in looks(names).items()}
    each = len(names) * _DOT_IN + _SPACE_IN
    longest = min(1.6, max(map(width_in, lines)))
    sheet, every, begins = panel_sheet(
        style,
        caption,
        [title for title, _, _ in panels],
        Room(
            tall_in=len(lines) * each,
            most=3,
            least_in=1.3 + longest / 3,
            width=COLUMN_IN if len(panels) == 1 else PAGE_IN,
        ),
        handles(look) if len(names) > 1 else (),
    )
    for n, ((_, x_name, dots), axes) in enumerate(zip(panels, every, strict=True)):
        for line in range(1, len(lines)):
            axes.axhline(line - 0.5, color=RULE, linewidth=0.4, zorder=1)
        zero = x_name.startswith(("change", "difference"))
        if zero:
            axes.axvline(0, color=REFERENCE, linewidth=0.6, zorder=1.5)
        offsets = {name: (place - (len(names) - 1) / 2) * _DOT_IN / each for place, name in enumerate(names)}
        points(axes, dots.assign(y=[dot.line + offsets[dot.name] for dot in dots.itertuples()]), look)
        low, high = (extent(dots, "x") if len(dots) else None) or (0.0, 0.0)
        low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        room = 0.06 * (high - low) or 1.0
        axes.set_xlim(low - room, high + room)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        name_lines(axes, lines if begins(n) else [""] * len(lines))
        sheet.name_axes(axes, x_name)
    return sheet


def precision(document: Document, style: FigureStyle) -> Sheet:
    """Two panels of cells over the formats of the device role and of the experts: average scores, relative changes."""
    rows = document.answers
    experts, devices = formats_of(rows)
    panels: tuple[tuple[str, Callable[[AccuracyRow], dict[str, Any]]], ...] = (
        ("average score by format, %", lambda row: _cell(score_text(row.score), Mark(key=(row.row.cell,)))),
        (
            "relative change by format, %",
            lambda row: _change_cell(row.result(), Mark(key=(row.row.cell,)), "baseline" if row.is_baseline else DASH),
        ),
    )
    needed = max(width_in("00.0 ± 0.0"), *map(width_in, devices)) * len(devices) + max(map(width_in, experts)) + 0.3
    titles = [title for title, _ in panels]
    sheet, every, begins = panel_sheet(
        style,
        [document.table.figure_caption],
        titles,
        Room(tall_in=len(experts) * CELL_IN, most=2, least_in=needed, width=PAGE_IN),
    )
    for n, (axes, (_, cell)) in enumerate(zip(every, panels, strict=True)):
        f = frame_of(
            cell(row) | {"x": devices.index(device), "y": experts.index(name)}
            for (name, device), row in by_formats(rows).items()
        )
        heat(sheet, axes, f, devices, experts if begins(n) else [""] * len(experts))
        sheet.name_axes(axes, "device role", "experts" if begins(n) else "")
    return sheet


def _cell(text: str, at: Mark, *, face: Any = NO_FACE, dark: bool = False, sure: bool = False) -> dict[str, Any]:
    return {"text": text, "mark": at, "face": face, "dark": dark, "sure": sure}


def _shaded(change: float, at: Mark, *, sure: bool = False) -> dict[str, Any]:
    """A relative change, the darker the greater the loss; letters are white from 60 % on."""
    return _cell(signed(change), at, face=LOSSES(min(max(-change, 0.0), 1.0)), dark=change < -0.6, sure=sure)


def _change_cell(result: Result | None, at: Mark, otherwise: str = DASH) -> dict[str, Any]:
    """The relative change of a score; `otherwise` where there is none."""
    if result is None or result.change is None or result.change.relative is None:
        return _cell(otherwise, at)
    return _shaded(result.change.relative.mid, at, sure=result.change.verdict is not ScoreVerdict.NONE_SHOWN)


COUNTED = {"deferral": "deferred", "skipping": "skipped"}
_AVERAGE_NAME = "Average"
_SHADES = ("#1d3f5e", "#5d93c4", "#7d7d7d", "#35688f", "#9dbdda", "#555555")


def deferral(document: Document, style: FigureStyle) -> Sheet:
    """Heat maps over experts deferred and skipped for each group of rows and as published; averages and KL below."""
    rows, lines = document.answers, document.lines
    blocks = [*_our_blocks(rows), *([_published_block(rows, lines)] if lines else [])]
    theirs = published_averages(lines, _published(lines)) if lines else frame_of([])
    changes = pd.concat([_counted(rows, _change), theirs])
    changes = changes[changes.groupby("name")["x"].transform("size") > 1]
    divergences = _counted(rows, _divergence)
    divergences = divergences[divergences["y"].notna()]
    look, panels = _count_looks(pd.concat([changes, divergences])), list[tuple[str, Callable[[Sheet, Axes], None]]]()
    if len(changes):
        near = changes[changes["feature"] == "deferral"]
        near = near if len(near) else changes
        panels.append(("change, whole", lambda sheet, axes: _draw_changes(sheet, axes, changes, changes, look)))
        panels.append(
            ("change, at the scale of deferral", lambda sheet, axes: _draw_changes(sheet, axes, changes, near, look))
        )
    if len(changes) and len(divergences):
        panels.append(("KL from the baseline", lambda sheet, axes: _draw_divergences(sheet, axes, divergences, look)))
    drawn = [(names, where, feature, f) for names, where, parts in blocks for feature, f in parts.items()]
    wide = style.width or PAGE_IN
    abreast, most = maps_abreast(wide, drawn), max(1, min(len(panels), int(wide / 1.7)))
    maps = [len(names) * CELL_IN for names, _, _, _ in drawn[::abreast]]
    legend = handles({name: look[name] for name in dict.fromkeys(changes["name"])})
    heights = [*maps, *([1.5] * -(-len(panels) // most))]
    sheet = Sheet(style, [document.table.figure_caption], heights, columns=6, legend=legend)
    for n, (names, where, feature, f) in enumerate(drawn):
        line, column = divmod(n, abreast)
        axes = sheet.axes_in(line, column * 6 // abreast, (column + 1) * 6 // abreast)
        count_map(sheet, axes, f, [""] * len(names) if column else names, feature, where)
    for n, (title, draw) in enumerate(panels):
        line, column = divmod(n, most)
        axes = sheet.axes_in(len(maps) + line, column * 6 // most, (column + 1) * 6 // most, title)
        draw(sheet, axes)
    return sheet


def maps_abreast(wide: float, drawn: Sequence[tuple[Sequence[str], str, str, pd.DataFrame]]) -> int:
    """Two heat maps, those of one line of names, or one where cells had no room for their numbers."""
    longest = max(width_in(name) for names, *_ in drawn for name in names)
    cells = max(f["x"].nunique() for *_, f in drawn) * 1.05 * width_in("-00.0")
    return 2 if wide > 2 * cells + longest + 0.5 else 1


def count_map(sheet: Sheet, axes: Axes, f: pd.DataFrame, lines: Sequence[str], feature: str, where: str = "") -> None:
    """A panel over how many experts a feature defers or skips: the score at none, where that is shown, and the changes.

    `where` says where the numbers are from, in figures that have some from several places.
    """
    counts = sorted({*f["x"]}) or [0]
    f = f.assign(x=[counts.index(count) for count in f["x"]])
    heat(sheet, axes, f, ["score" if count == 0 else str(count) for count in counts], lines)
    sheet.name_axes(axes, f"experts {COUNTED[feature]} of a token")
    title = f"{feature.capitalize()}, {where}" if where else BY_NAME[feature].title
    axes.set_title(sheet.style.text(f"{title}: relative change, %"))


def published_cells(lines: Sequence[PaperLine], feature: str) -> pd.DataFrame:
    """The cells of those of `lines` that are about a feature, or about neither: scores, or changes relative to them."""
    (other,) = COUNTED.keys() - {feature}
    mine = [line for line in lines if line.published is not None and _count_of(line, other) == 0]
    tasks = list(dict.fromkeys(line.what for line in lines))
    return frame_of(
        (
            _shaded((line.published or 0.0) / 100, at)
            if line.metric == "relative %"
            else _cell(f"{line.published:g}", at)
        )
        | {"x": _count_of(line, feature), "y": tasks.index(line.what)}
        for line in mine
        for at in [Mark(key=(line.id, line.cell))]
    )


def tasks_named(lines: Sequence[PaperLine]) -> list[str]:
    """Tasks in order of appearance, without the words that all begin and end with."""
    tasks = [task.split() for task in dict.fromkeys(line.what for line in lines)]
    head, tail = _alike(tasks), _alike([task[::-1] for task in tasks])
    return [" ".join(task[head : len(task) - tail]).strip(",") for task in tasks]


def _alike(texts: Sequence[Sequence[str]]) -> int:
    """With how many words all begin."""
    return sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, zip(*texts, strict=False)))


def _count_of(line: PaperLine, feature: str) -> int:
    """How many experts the arm of a line defers or skips."""
    value = arm_features(line.arm)[feature]
    assert isinstance(value, int), f"{line.arm}: {feature}={value} is no number"
    return value


_Block = tuple[Sequence[str], str, dict[str, pd.DataFrame]]  # names of lines, where from, cells of both features


def _our_blocks(rows: Sequence[AccuracyRow]) -> Iterator[_Block]:
    kind, names = parts_of_average(rows)
    places: list[tuple[str, SubjectKind]] = [*((name, kind) for name in names), (AVERAGE, "average")]
    shown = [*(name.replace("_", " ").capitalize() for name in names), _AVERAGE_NAME]
    for name, group in _groups_by_name(rows).items():
        yield (
            shown,
            name,
            {
                feature: frame_of(
                    _count_cell(row, *where, count) | {"x": count, "y": y}
                    for count, row in sorted(_rows_by_count(group, feature).items())
                    for y, where in enumerate(places)
                )
                for feature in COUNTED
            },
        )


def _count_cell(row: AccuracyRow, subject: str, kind: SubjectKind, count: int) -> dict[str, Any]:
    """The score where no expert is deferred or skipped, else the change."""
    result = row.result(subject, kind)
    at = Mark(key=(row.row.cell,)) if result is None else _mark(row, subject, kind)
    if count:
        return _change_cell(result, at)
    return _cell(DASH if result is None or result.score is None else f"{100 * result.score.mid:.1f}", at)


def _published_block(rows: Sequence[AccuracyRow], lines: Sequence[PaperLine]) -> _Block:
    _, names = parts_of_average(rows)
    ours = {name.lower(): name for name in (*(name.replace("_", " ").capitalize() for name in names), _AVERAGE_NAME)}
    tasks = [ours.get(task.lower(), task) for task in tasks_named(lines)]
    return tasks, _published(lines), {feature: published_cells(lines, feature) for feature in COUNTED}


def _published(lines: Sequence[PaperLine]) -> str:
    return f"published ({model_title(lines[0].model)})"


def all_counted(rows: Sequence[AccuracyRow]) -> bool:
    """Whether every cell is drawn: each defers or skips a number of experts that others of its group differ in."""
    found = {
        row.row.cell
        for group in _groups_by_name(rows).values()
        for feature in COUNTED
        if len(by_count := _rows_by_count(group, feature)) > 1
        for row in by_count.values()
    }
    return all(row.row.cell in found for row in rows)


def _groups_by_name(rows: Sequence[AccuracyRow]) -> dict[str, tuple[AccuracyRow, ...]]:
    """Rows that differ in their arms alone, by what the group is called: the model where there is one group."""
    settings, by_cell = settings_shown(rows), {row.row.cell: row for row in rows}
    found: dict[str, tuple[AccuracyRow, ...]] = {}
    for group in groups_of([row.row for row in rows]):
        words = [f"{key.rpartition('.')[2]} {shown_setting(key, group[0].settings.get(key))}" for key in settings]
        name = ", ".join(words) or f"{rows[0].provenance or 'here'} ({model_title(group[0].spec.model.name)})"
        found[name] = tuple(by_cell[row.cell] for row in group)
    return found


def _rows_by_count(rows: Sequence[AccuracyRow], feature: str) -> dict[int, AccuracyRow]:
    """Rows by how many experts they defer or skip; those that do the other, or leave the number open, left out."""
    (other,) = COUNTED.keys() - {feature}
    found: dict[int, AccuracyRow] = {}
    for row in rows:
        count = row.row.features[feature]
        if not row.row.features[other] and isinstance(count, int):
            found.setdefault(count, row)
    return found


def _counted(rows: Sequence[AccuracyRow], value: Callable[[AccuracyRow], dict[str, float] | None]) -> pd.DataFrame:
    """A value of the average over the number of experts, for each feature of each group."""
    groups = _groups_by_name(rows)
    return frame_of(
        {"name": feature + (f", {name}" if len(groups) > 1 else ""), "feature": feature, "x": count, "published": False}
        | {"mark": Mark(key=(row.row.cell,))}
        | y
        for name, group in groups.items()
        for feature in COUNTED
        for count, row in sorted(_rows_by_count(group, feature).items())
        if (y := value(row)) is not None
    )


def _change(row: AccuracyRow) -> dict[str, float] | None:
    """The relative change of the average in percent."""
    result = row.result()
    if row.is_baseline:
        return dict.fromkeys(("y", "y_low", "y_high"), 0.0)
    return ends("y", result.change.relative, 100) if result and result.change and result.change.relative else None


def _divergence(row: AccuracyRow) -> dict[str, float] | None:
    """The KL of the average in nats a token; an end of its interval that a logarithm cannot show is its middle."""
    result = row.result()
    if row.is_baseline or result is None or result.kl is None or result.kl.mid <= 0:
        return None
    found = ends("y", result.kl)
    return found if not found["y_low"] <= 0 else found | {"y_low": found["y"]}


def published_averages(lines: Sequence[PaperLine], where: str) -> pd.DataFrame:
    """The changes of the average as published, for each feature."""
    return frame_of(
        sorted(
            (
                {
                    "name": f"{feature}, {where}", "feature": feature, "published": True, "x": _count_of(line, feature),
                    **dict.fromkeys(("y", "y_low", "y_high"), line.published if line.metric == "relative %" else 0.0),
                    "mark": Mark(key=(line.id, line.cell)),
                }
                for feature, other in zip(COUNTED, reversed(COUNTED), strict=True)
                for line in lines
                if f" {_AVERAGE_NAME}" in line.what and _count_of(line, other) == 0
                and (line.metric != "relative %" or line.published is not None)
            ),
            key=lambda point: (point["name"], point["x"], point["y"]),
        )
    )  # fmt: skip


def _count_looks(f: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Markers by feature, shades by curve; published ones are grey, hollow and dashed."""
    found = {}
    for n, (name, feature, published) in enumerate(
        f[["name", "feature", "published"]].drop_duplicates("name").itertuples(index=False) if len(f) else ()
    ):
        shade = REFERENCE if published else _SHADES[n % len(_SHADES)]
        found[name] = {
            "color": shade,
            "linewidth": 0.8 if published else 1.0,
            "linestyle": (0, (3, 2)) if published else "-",
            "marker": "o" if feature == "deferral" else "s",
            "markersize": 3.0,
            "markerfacecolor": "white" if published else shade,
            "markeredgewidth": 0.7,
        }
    return found


def _draw_changes(
    sheet: Sheet, axes: Axes, f: pd.DataFrame, near: pd.DataFrame, look: Mapping[str, Mapping[str, Any]]
) -> None:
    """Changes at the scale of those `near`."""
    axes.axhline(0, color=REFERENCE, linewidth=0.5, zorder=1)
    _draw_counted(sheet, axes, f, look, "change of the average, %")
    low, high = extent(near) or (0.0, 1.0)
    room = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _draw_divergences(sheet: Sheet, axes: Axes, f: pd.DataFrame, look: Mapping[str, Mapping[str, Any]]) -> None:
    axes.set_yscale("log")
    _draw_counted(sheet, axes, f, look, "nats a token")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_counted(sheet: Sheet, axes: Axes, f: pd.DataFrame, look: Mapping[str, Mapping[str, Any]], y: str) -> None:
    curves(axes, f, look, bands=True)
    counts = sorted({*f["x"]})
    axes.set_xlim(counts[0] - 0.3, counts[-1] + 0.3)
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    sheet.name_axes(axes, "experts deferred or skipped", y)


def frontier(document: Document, style: FigureStyle) -> Sheet:
    """Speed against score, or where nothing is graded against the divergence of formats from the baseline."""
    rows, caption = document.answers, [document.table.figure_caption]
    if is_graded(rows):
        return _scores_over_speed(rows, [*caption, *undrawn(rows)], style)
    cells = [row.row for row in rows]
    absent = ((f"precision={format_name(row.row, cells)}", why) for row in rows if (why := absence_of(row)))
    return draw_formats(plane_of_answers(rows), [*caption, *not_drawn(absent)], style)


def _scores_over_speed(rows: Sequence[AccuracyRow], caption: Sequence[str], style: FigureStyle) -> Sheet:
    """A marker for each cell, those that none beats in both joined; the look says the formats, words the features."""
    found = list(frontier_of(rows).values())
    words, key = _words_of([point.row.row.shown for point in found])
    f = frame_of(
        ends("x", p.speed) | ends("y", p.score, 100)
        | {"name": _formats_text(p.row), "mark": Mark(key=(p.row.row.cell,)), "best": p.is_pareto, "text": text}
        for p, text in zip(found, words, strict=True)
    )  # fmt: skip
    look = {
        name: one | {"linestyle": "", "markersize": 4.0, "markerfacecolor": "white"}
        for name, one in looks(f["name"]).items()
    }
    joined: Any = {"color": REFERENCE, "linewidth": 0.8}
    front = Line2D([], [], label="Pareto by the middles, filled", marker="o", markersize=3.4, **joined)
    numbers = [Line2D([], [], label=f"numbers: {key}", linestyle="")] if key else []
    sheet = Sheet(style, caption, [3.0], legend=[*handles(look), front, *numbers])
    axes = sheet.axes_in(0)
    if not len(f):
        axes.set_axis_off()
        return sheet
    f["look"] = [{"markerfacecolor": look[p.name]["color"]} if p.best else {} for p in f.itertuples()]
    points(axes, f, look)
    best = f[f["best"].astype(bool)].sort_values(["x", "y"])
    axes.plot(best["x"].to_numpy(float), best["y"].to_numpy(float), zorder=2, **joined)
    limits = []
    for of in "xy":
        low, high = extent(f, of) or (0.0, 1.0)
        limits.append((low - 0.08 * (high - low), high + 0.08 * (high - low)))
    set_axes(axes, *limits)
    set_ticks(sheet, axes, *(round_ticks(high, 8, low) for low, high in (axes.get_xlim(), axes.get_ylim())))
    sheet.name_axes(axes, "decode speed, tokens/s", "average score, %")

    def label() -> None:
        labels = Labels(sheet, axes)
        for point in f.sort_values("best", ascending=False, kind="stable").itertuples():
            labels.at_marker(point.text, (point.x, point.y))

    sheet.labels.append(label)
    return sheet


def _formats_text(row: AccuracyRow) -> str:
    """The format of the experts, and that of the device role where it is another."""
    spec = row.row.spec
    return spec.precision if spec.precision == spec.device_precision else f"{spec.precision}, {spec.device_precision}"


def _words_of(arms: Sequence[str]) -> tuple[list[str], str]:
    """What stands at each marker, and what it is the number of; nothing where it is no number.

    Words that all arms share are left out. Where one feature alone is left its number is enough, 0 without it.
    """
    labels = [without_precision(arm) for arm in arms]
    common = set.intersection(*(set(label.split()) for label in labels)) if labels else set()
    short = [" ".join(word for word in label.split() if word not in common) for label in labels]
    keys = {text.partition("=")[0] for text in short if text}
    if len(keys) == 1 and all(text.count("=") == 1 for text in short if text):
        return [text.partition("=")[2] or "0" for text in short], keys.pop()
    return [text or label for text, label in zip(short, labels, strict=True)], ""
