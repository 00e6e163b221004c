"""One panel of the breakdown figure: bars, whiskers, values, and the reasons of slots without a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ktbench.report.lettering import INK, LABEL_PT, PAD_IN, TICK_PT, VALUE_PT, lettered, line_in, width_in
from ktbench.report.slots import Group, Slot

# From light to dark in steps that a grey print keeps; hatches tell neighbours apart once more.
_FILLS = ("#ffffff", "#dde9f3", "#c0d5e8", "#a0bfdb", "#80a8cd", "#628fbb", "#4a76a3")
_HATCHES = ("", "/////", ".....", "\\\\\\\\\\", "xxxxx", "-----", "+++++")
_BAR = 0.8  # of a slot


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Groups side by side in axes of a known size in inches; `arms` decides fill and hatch.

    Bars are speed-ups over `baseline`, speeds where that is None.
    """

    groups: tuple[Group, ...]
    arms: tuple[str, ...]
    baseline: str | None
    width_in: float
    height_in: float

    @property
    def span(self) -> int:
        """Slots, with one left free between groups."""
        return sum(len(group.slots) + 1 for group in self.groups) - 1

    @property
    def slot_in(self) -> float:
        """Width of a slot in inches."""
        return self.width_in / self.span

    @property
    def starts(self) -> list[int]:
        """Position of each group's first slot."""
        return [sum(len(group.slots) + 1 for group in self.groups[:n]) for n in range(len(self.groups))]

    @property
    def placed(self) -> list[tuple[int, Slot]]:
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
        return any(width_in(s.text, VALUE_PT) > 0.98 * self.slot_in for _, s in self.placed if s.height is not None)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions and names below the axis: arms of the only group, else groups."""
        if len(self.groups) == 1:
            return [(x, _folded(slot.arm, self.slot_in)) for x, slot in self.placed]
        middles = [start + (len(group.slots) - 1) / 2 for start, group in zip(self.starts, self.groups, strict=True)]
        widths = [len(group.slots) * self.slot_in for group in self.groups]
        names = [_folded(group.name, room) for group, room in zip(self.groups, widths, strict=True)]
        return list(zip(middles, names, strict=True))

    def below_in(self) -> float:
        """Room that the names below the axis take, in inches."""
        lines = max(name.count("\n") + 1 for _, name in self.ticks())
        return (lines + (1.5 if len(self.groups) == 1 else 0.6)) * line_in(TICK_PT)


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw a panel into axes of its size."""
    axes.set_xlim(-0.6, panel.span - 0.4)
    axes.set_ylim(0, _ceiling(panel))
    if panel.baseline is not None:
        axes.axhline(1, color=INK, linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
    for x, slot in panel.placed:
        if slot.height is None:
            lettered(axes, x, 0, slot.text, upright=True)
        else:
            _bar(axes, x, slot, panel.arms.index(slot.arm))
            lettered(axes, x, slot.top, slot.text, upright=panel.upright)
    axes.set_ylabel(panel.name, fontsize=LABEL_PT, labelpad=2)
    axes.tick_params(axis="y", labelsize=TICK_PT, width=0.6, length=2.5, pad=2)
    positions, names = zip(*panel.ticks(), strict=True)
    axes.set_xticks(positions, names, fontsize=TICK_PT)
    axes.tick_params(axis="x", length=0, pad=2)
    if len(panel.groups) == 1:
        axes.set_xlabel(panel.groups[0].name, fontsize=TICK_PT, labelpad=1)


def swatches(arms: Sequence[str]) -> list[Artist]:
    """Legend entries of arms."""
    return [Patch(**_fill(number), linewidth=0.6, label=arm) for number, arm in enumerate(arms)]


def _fill(number: int) -> dict[str, Any]:
    return {
        "facecolor": _FILLS[number % len(_FILLS)],
        "hatch": _HATCHES[(number + number // len(_FILLS)) % len(_HATCHES)],
        "edgecolor": INK,
    }


def _folded(name: str, room_in: float) -> str:
    """A name in two lines where one is too long."""
    return name if width_in(name, TICK_PT) <= room_in else name.replace(", ", ",\n").replace(" ", "\n")


def _ceiling(panel: Panel) -> float:
    """Upper end of the axis, so that the text over the highest bar fits below it."""
    bars = [slot for _, slot in panel.placed if slot.height is not None]
    texts = [width_in(s.text, VALUE_PT) if panel.upright else line_in(VALUE_PT) for s in bars]
    tops = [s.top / (1 - (text + 2 * PAD_IN) / panel.height_in) for s, text in zip(bars, texts, strict=True)]
    return max(tops, default=1.2)


def _bar(axes: Axes, x: int, slot: Slot, number: int) -> None:
    axes.bar(x, slot.height or 0, _BAR, **_fill(number), linewidth=0.6, linestyle="--" if slot.noisy else "-", zorder=2)
    if slot.whisker is not None:
        reach = [[slot.whisker.mid - slot.whisker.low], [slot.whisker.high - slot.whisker.mid]]
        axes.errorbar(x, slot.whisker.mid, reach, ecolor="black", elinewidth=0.8, capsize=1.8, capthick=0.8, zorder=4)
