"""Grouped bars: normalised to the baseline as in KTransformers (SOSP'25), Fig. 14; speeds of systems as in Fig. 12."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ktbench.report.conditions import arm_namer
from ktbench.report.figures.curves import reason_of
from ktbench.report.figures.sheet import (
    COLUMN_IN,
    LEFT_IN,
    PAGE_IN,
    PLOT_IN,
    RIGHT_IN,
    WHISKER,
    Sheet,
    mark_cells,
    reach,
)
from ktbench.report.figures.text_metrics import (
    INK,
    LABEL_PT,
    PAD_IN,
    TICK_PT,
    folded,
    line_in,
    packed,
    text_above,
    width_in,
)
from ktbench.report.table import Table
from ktbench.report.text import not_drawn
from ktbench.results.intervals import Interval
from ktbench.results.quantities.text import number
from ktbench.results.quantities.writing import MARK
from ktbench.results.row import Row, groups_of, shows_speeds
from ktbench.results.settings import TOKENS, model_title, varying
from ktbench.spec.record import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class BarSlot:
    """One arm in one group: a bar as high as its speed-up, or as its speed where systems are compared, with its
    interval, which the baseline's speed-up and what is simulated have none of.
    """

    arm: str
    cell: str
    text: str
    height: float
    whisker: Interval | None = None

    @property
    def top(self) -> float:
        """Where bar and whisker end."""
        return max(self.height, self.whisker.high if self.whisker else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BarGroup:
    """Slots that share a baseline. `name` distinguishes the group from the others, or describes the only one."""

    name: str
    slots: tuple[BarSlot, ...]


def slots_of(rows: Sequence[Row]) -> tuple[tuple[BarGroup, ...], tuple[str, ...]]:
    """Groups of slots, and the sentences on arms without a bar, which take no place."""
    arms = [found for group in groups_of(rows) if (found := [row for row in group if row.role == "arm"])]
    free = varying([group[0].settings for group in arms])
    speeds = shows_speeds(rows)
    names = [_name(group[0], free) for group in arms]
    named = arm_namer(rows)
    slots = [[_slot(row, named(row), speeds=speeds) for row in group] for group in arms]
    drawn = {slot.arm for found in slots for slot in found if slot}
    absent = not_drawn(
        (
            f"{named(row)}, {name}" if named(row) in drawn else named(row),
            row.missing["speedup"] if row.timed else reason_of(row),
        )
        for group, found, name in zip(arms, slots, names, strict=True)
        for row, slot in zip(group, found, strict=True)
        if slot is None
    )
    groups = (BarGroup(name=name, slots=tuple(filter(None, found))) for name, found in zip(names, slots, strict=True))
    return tuple(group for group in groups if group.slots), absent


def _name(row: Row, free: Sequence[str]) -> str:
    whole = ("model", TOKENS) if row.is_layer else ("model", "model.layers", "workload.phase")
    keys = free or whole
    return ", ".join(_named(key, row) for key in keys)


def _named(key: str, row: Row) -> str:
    value = row.settings.get(key)
    if key == "model.layers":
        return f"{value} layer{'' if value == 1 else 's'}"
    if key == "model":
        return model_title(str(value))
    return str(value) if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"


def _slot(row: Row, arm: str, *, speeds: bool) -> BarSlot | None:
    value = row.tokens_per_s if speeds else row.speedup
    middle = None if value is None else value.mid
    height = 1.0 if row.is_baseline and not speeds else middle
    if row.step_s is None or row.tokens_per_s is None or height is None:
        return None
    noisy = row.outcome is Outcome.NOISY
    shown = f"{number(height, 3)}{'' if speeds else '×'}"
    text = f"{'~' if noisy else ''}{shown}{MARK if row.unproven else ''}"
    whisker = value if value is not None and value.has_ends else None
    return BarSlot(arm=arm, cell=row.cell, text=text, height=height, whisker=whisker)


# From light to dark in steps that a grey print keeps; hatches also distinguish neighbours.
_FILLS = ("#ffffff", "#dde9f3", "#c0d5e8", "#a0bfdb", "#80a8cd", "#628fbb", "#4a76a3")
_HATCHES = ("", "/////", "|||||", "\\\\\\\\\\", "xxxxx", "-----", "+++++")
_BAR = 0.8  # of a slot
_BETWEEN_IN = 0.06  # two names below the axis
_PARTS = re.compile(r"\+[^+ ]+|\s*[^+ ]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Groups side by side in axes of a known size in inches; `arms` decides fill and hatch.

    Bars are speed-ups over `baseline`, speeds where that is None.
    """

    groups: tuple[BarGroup, ...]
    arms: tuple[str, ...]
    baseline: str | None
    width_in: float
    height_in: float

    @property
    def span(self) -> int:
        """Slots, with one left free between groups."""
        return _slots(self.groups)

    @property
    def slot_in(self) -> float:
        """Width of a slot in inches."""
        return self.width_in / self.span

    @property
    def starts(self) -> list[int]:
        """Position of each group's first slot."""
        return [_slots(self.groups[:n]) + 1 for n in range(len(self.groups))]

    @property
    def placed(self) -> list[tuple[int, BarSlot]]:
        """Slots with their positions."""
        return [
            (start + n, slot)
            for start, group in zip(self.starts, self.groups, strict=True)
            for n, slot in enumerate(group.slots)
        ]

    @property
    def name(self) -> str:
        """What the height of bars is, in as many words as the axis has room for."""
        if self.baseline is None:
            return "tokens/s"
        whole = f"speed-up over {self.baseline} (×)"
        return whole if width_in(whole, LABEL_PT) <= self.height_in else "speed-up (×)"

    @property
    def upright(self) -> bool:
        """Whether values must stand upright to fit over their bars."""
        return any(width_in(s.text) > 0.98 * self.slot_in for _, s in self.placed)

    @property
    def shared(self) -> str:
        """The features that all arms of the only group begin with, where a whole name is wider than its slot."""
        arms = [slot.arm for slot in self.groups[0].slots]
        if len(arms) == 1 or all(width_in(arm) <= self.slot_in - _BETWEEN_IN for arm in arms):
            return ""
        parts = [_PARTS.findall(arm) for arm in arms]
        return "".join(found[0] for found in takewhile(lambda found: len({*found}) == 1, zip(*parts, strict=False)))

    def ticks(self) -> list[tuple[float, str]]:
        """Positions and names below the axis: arms of the only group, else groups."""
        if len(self.groups) == 1:
            return [(x, folded(self._tick(slot.arm), self.slot_in - _BETWEEN_IN)) for x, slot in self.placed]
        middles = [start + (len(group.slots) - 1) / 2 for start, group in zip(self.starts, self.groups, strict=True)]
        widths = [len(group.slots) * self.slot_in for group in self.groups]
        names = [folded(group.name, room) for group, room in zip(self.groups, widths, strict=True)]
        return list(zip(middles, names, strict=True))

    def _tick(self, arm: str) -> str:
        own = arm.removeprefix(self.shared).strip()
        return f"…{own}" if self.shared and own else arm

    def below_in(self) -> float:
        """Room that the names below the axis take, in inches."""
        lines = max(name.count("\n") + 1 for _, name in self.ticks())
        return (lines + (1.8 if len(self.groups) == 1 else 0.6)) * line_in()


def _slots(groups: Sequence[BarGroup]) -> int:
    """Slots with one left free between groups."""
    return sum(len(group.slots) + 1 for group in groups) - 1


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw a panel into axes of its size."""
    axes.set_xlim(-0.6, panel.span - 0.4)
    axes.set_ylim(0, _ceiling(panel))
    if panel.baseline is not None:
        axes.axhline(1, color=INK, linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
    for x, slot in panel.placed:
        fill = _fill(panel.arms.index(slot.arm))
        (box,) = axes.bar(x, slot.height, _BAR, **fill, linewidth=0.6, zorder=2)
        mark_cells(box, [slot.cell])
        text_above(axes, x, slot.top, slot.text, upright=panel.upright)
    _whiskers(axes, panel.placed)
    axes.set_ylabel(panel.name)
    axes.set_xticks(*zip(*panel.ticks(), strict=True))
    axes.tick_params(axis="x", length=0)
    if len(panel.groups) == 1:
        name = panel.groups[0].name
        axes.set_xlabel(f"{name} (…: {panel.shared})" if panel.shared else name, fontsize=TICK_PT, labelpad=3)


def swatches(arms: Sequence[str]) -> list[Artist]:
    """Legend entries of arms."""
    return [Patch(**_fill(number), linewidth=0.6, label=arm) for number, arm in enumerate(arms)]


def _fill(number: int) -> dict[str, Any]:
    return {
        "facecolor": _FILLS[number % len(_FILLS)],
        "hatch": _HATCHES[(number + number // len(_FILLS)) % len(_HATCHES)],
        "edgecolor": INK,
    }


def _ceiling(panel: Panel) -> float:
    """Upper end of the axis, so that the text over the highest bar fits below it."""
    bars = [slot for _, slot in panel.placed]
    texts = [width_in(s.text) if panel.upright else line_in() for s in bars]
    tops = [s.top / (1 - (text + 2 * PAD_IN) / panel.height_in) for s, text in zip(bars, texts, strict=True)]
    return max(tops, default=1.2)


def _whiskers(axes: Axes, placed: Sequence[tuple[int, BarSlot]]) -> None:
    """All whiskers of a panel at once, which takes a tenth of the time of one by one."""
    found = [(x, slot.whisker) for x, slot in placed if slot.whisker is not None]
    if found:
        xs, whiskers = zip(*found, strict=True)
        mids = [whisker.mid for whisker in whiskers]
        axes.errorbar(xs, mids, reach(whiskers), linestyle="", color="black", zorder=4, **WHISKER)


# The arms of one group are named below their bars, those of several in the legend.
_SLOTS_IN_COLUMN, _SLOTS_OF_GROUPS_IN_COLUMN, _SLOTS_IN_PANEL = 6, 8, 64


def draw_breakdown(rows: Sequence[Row], table: Table) -> Sheet:
    """A bar for every arm that was timed; a sentence says why others have none."""
    groups, notes = slots_of(rows)
    fitting = _SLOTS_IN_COLUMN if len(groups) == 1 else _SLOTS_OF_GROUPS_IN_COLUMN
    width = COLUMN_IN if _slots(groups) <= fitting else PAGE_IN
    inner = width - LEFT_IN - RIGHT_IN
    arms = tuple(dict.fromkeys(slot.arm for group in groups for slot in group.slots))
    baseline = None if shows_speeds(rows) else rows[0].baseline
    # A new row of groups where a page is too narrow for more.
    parts = packed(groups, lambda part: _slots(part) <= _SLOTS_IN_PANEL)
    panels = [
        Panel(groups=tuple(part), arms=arms, baseline=baseline, width_in=inner, height_in=PLOT_IN) for part in parts
    ]
    talls = [PLOT_IN + panel.below_in() for panel in panels]
    legend = swatches(arms) if len(groups) > 1 else ()
    figure = Sheet(width, sum(talls), [table.figure_caption, *notes], legend)
    for n, panel in enumerate(panels):
        draw_panel(figure.axes_at(LEFT_IN, sum(talls[:n]), inner), panel)
    return figure
