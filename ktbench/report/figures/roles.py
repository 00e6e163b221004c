"""Speed over how busy the roles were, arm beside arm: the numbers that KTransformers (SOSP'25) gives with Fig. 10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ktbench.report.figures.curves import reason_of
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    PAGE_IN,
    WHISKER,
    PanelGrid,
    Sheet,
    mark_cells,
    reach,
)
from ktbench.report.figures.text_metrics import INK, folded, line_in, text_above, width_in
from ktbench.report.table import Table
from ktbench.report.text import names_by, not_drawn, some
from ktbench.results.quantities.text import number
from ktbench.results.row import Row, groups_of
from ktbench.results.settings import varying
from ktbench.spec.features import BY_NAME, features_label
from ktbench.spec.record import Outcome

_SPEED_IN, _BUSY_IN, _BETWEEN_IN = 1.15, 0.8, 0.08  # plot heights, and what is between the two of a group
_TITLE_IN, _GAP_IN = 0.15, 0.06
_MOST_ABREAST, _IN_COLUMN = 3, 10
_BAR = 0.27
_SHARES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("host busy", "host_busy", {"facecolor": "#4a76a3"}),
    ("device busy", "device_busy", {"facecolor": "#dde9f3"}),
    ("both at once", "overlap", {"facecolor": "#ffffff", "hatch": "//////"}),
)
_SPEED: dict[str, Any] = {"color": "#000000", "marker": "o", "markersize": 3.4, "linewidth": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class _RoleGroup:
    """Arms side by side in axes `width_in` inches wide."""

    title: str
    rows: tuple[Row, ...]
    width_in: float

    @property
    def ladder(self) -> bool:
        """Whether the arms differ in how many experts they defer and in nothing else."""
        off = BY_NAME["deferral"].off
        return len({features_label({**row.features, "deferral": off}) for row in self.rows}) == 1 < len(self.rows)

    @property
    def ticks(self) -> list[str]:
        """Names below the arms: the experts deferred, else the arms, in two lines where one is too long."""
        if self.ladder:
            return [str(row.features["deferral"]) for row in self.rows]
        room_in = self.width_in / len(self.rows)
        return [folded(row.shown, room_in) for row in self.rows]

    @property
    def below_in(self) -> float:
        """Room for the lines of the ticks' names and the name of the axis."""
        return (max(tick.count("\n") for tick in self.ticks) + 2.8) * line_in()


def draw_roles(rows: Sequence[Row], table: Table) -> Sheet:
    """Two plots for each group of rows: tokens/s with intervals, below it the shares of the steps as bars."""
    found = [arms for group in groups_of(rows) if (arms := tuple(row for row in group if row.role == "arm"))]
    free = varying([arms[0].settings for arms in found])
    has_shares = any(row.interval("host_busy") for arms in found for row in arms)
    layout = PanelGrid(
        count=len(found),
        columns=min(len(found), _MOST_ABREAST),
        tall_in=_SPEED_IN + (_BETWEEN_IN + _BUSY_IN if has_shares else 0.0),
        above_in=_GAP_IN + (_TITLE_IN if free else 0.0),
        below_in=0.0,
        width_in=COLUMN_IN if len(found) == 1 and len(found[0]) <= _IN_COLUMN else PAGE_IN,
    )
    titles = [", ".join(f"{key.rpartition('.')[2]} {arms[0].settings.get(key)}" for key in free) for arms in found]
    groups = [
        _RoleGroup(title=title, rows=arms, width_in=layout.each_in) for title, arms in zip(titles, found, strict=True)
    ]
    layout = replace(layout, below_in=max(group.below_in for group in groups))
    figure = layout.sheet([table.figure_caption, *_absent(rows)], _swatches(rows) if has_shares else ())
    for n, group in enumerate(groups):
        left, top = layout.place(n)
        lowest = figure.axes_at(left, top, layout.each_in, _SPEED_IN, group.title)
        _draw_speed(lowest, group)
        if has_shares:
            lowest = figure.axes_at(left, top + _SPEED_IN + _BETWEEN_IN, layout.each_in, _BUSY_IN)
            _draw_shares(lowest, group)
        _name_arms(lowest, group)
    return figure


def _swatches(rows: Sequence[Row]) -> list[Artist]:
    """Of the speed and of the shares that some row has: a CUDA device's are not known."""
    shown = [(name, look) for name, share, look in _SHARES if any(row.interval(share) for row in rows)]
    bars = [Patch(**look, edgecolor=INK, linewidth=0.6, label=name) for name, look in shown]
    return [Line2D([], [], label="tokens/s", **_SPEED), *bars]


def _draw_speed(axes: Axes, group: _RoleGroup) -> None:
    """Medians with their intervals from zero up, each with its number where that has room."""
    drawn = [(n, row, row.tokens_per_s) for n, row in enumerate(group.rows) if row.tokens_per_s is not None]
    xs, mids = [n for n, _, _ in drawn], [speed.mid for _, _, speed in drawn]
    whiskers = reach([speed for _, _, speed in drawn])
    points = axes.errorbar(xs, mids, whiskers, zorder=3, **WHISKER, **_SPEED | {"linestyle": ""})
    mark_cells(points.lines[0], [row.cell for _, row, _ in drawn])
    numbered = [(n, speed.mid) for n, row, speed in drawn if group.ladder and row.features["deferral"] != "auto"]
    axes.plot([n for n, _ in numbered], [mid for _, mid in numbered], zorder=2, **_SPEED | {"marker": ""})
    axes.set_xlim(-0.6, len(group.rows) - 0.4)
    axes.set_ylim(0, max((speed.high for _, _, speed in drawn), default=1.0) * 1.22)
    axes.set_xticks(range(len(group.rows)), [""] * len(group.rows))
    axes.set_ylabel("tokens/s")
    for n, row, speed in drawn:
        text = f"{'~' if row.outcome is Outcome.NOISY else ''}{number(speed.mid, 3)}"
        if width_in(text) <= 0.95 * group.width_in / len(group.rows):
            text_above(axes, n, speed.high, text, upright=False)


def _draw_shares(axes: Axes, group: _RoleGroup) -> None:
    for place, (_, share, look) in enumerate(_SHARES):
        for n, row in enumerate(group.rows):
            shown = row.interval(share)
            if shown is not None:
                x = n + (place - 1) * _BAR
                (box,) = axes.bar(x, 100 * shown.mid, _BAR, edgecolor=INK, linewidth=0.6, zorder=2, **look)
                mark_cells(box, [row.cell])
    axes.set_xlim(-0.6, len(group.rows) - 0.4)
    axes.set_ylim(0, 105)
    axes.set_yticks([0, 50, 100])
    axes.set_ylabel("% of the step")


def _name_arms(axes: Axes, group: _RoleGroup) -> None:
    axes.set_xticks(range(len(group.rows)), group.ticks)
    axes.tick_params(axis="x", length=0)
    if group.ladder:
        top_k = group.rows[0].spec.model.shape.top_k
        axes.set_xlabel(f"experts deferred, of {top_k} a token")


def _absent(rows: Sequence[Row]) -> list[str]:
    """For each reason the arms without a speed or without the times of their roles."""
    arms = [row for row in rows if row.role == "arm"]
    untimed = not_drawn((row.shown, reason_of(row)) for row in arms if not row.timed)
    alone = [row for row in arms if row.timed and row.interval("host_busy") is None]
    unshared = names_by((row.shown, row.missing.get("roles", "the roles share their cores")) for row in alone)
    shared = any(row.interval("host_busy") for row in arms)
    return [
        *untimed,
        *(f"No shares{f' of {some(names)}' if shared else ''}: {why}." for why, names in unshared.items()),
    ]
