"""What stands in each slot of the breakdown figure: a bar, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ktbench.report.conditions import MARK
from ktbench.report.lettering import width_in
from ktbench.report.text import number
from ktbench.results.intervals import Interval
from ktbench.results.row import Row, groups_of, shows_speeds
from ktbench.results.settings import TOKENS, varying
from ktbench.spec.record import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One arm in one group: a bar as high as its speed-up, or as its speed where systems are compared, with its
    interval, which the baseline's speed-up and what is simulated have none of; or why there is no bar.
    """

    arm: str
    text: str
    height: float | None = None
    whisker: Interval | None = None
    noisy: bool = False

    @property
    def top(self) -> float:
        """Where bar and whisker end."""
        return max(self.height or 0.0, self.whisker.high if self.whisker else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Slots that share a baseline. `name` tells the group from the others, or says what the only one is."""

    name: str
    slots: tuple[Slot, ...]


def slots_of(rows: Sequence[Row], room_in: float, size_pt: float) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Groups of slots, and the notes for reasons too long for a slot, in which upright text has `room_in` inches."""
    arms = [group for group in (_arms(rows) for rows in groups_of(rows)) if group]
    free = varying([group[0].settings for group in arms])
    notes: dict[str, int] = {}
    groups, slot = [], _speed_slot if shows_speeds(rows) else _speedup_slot
    for group in arms:
        slots = tuple(slot(row) or _empty(row, notes, room_in, size_pt) for row in group)
        groups.append(Group(name=_name(group[0], free), slots=slots))
    return tuple(groups), _numbered(notes)


def _arms(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(row for row in rows if row.role == "arm")


def _name(row: Row, free: Sequence[str]) -> str:
    whole = ("model", TOKENS) if row.is_layer else ("model", "model.layers", "workload.phase")
    keys = free or whole
    return ", ".join(_named(key, row) for key in keys)


def _named(key: str, row: Row) -> str:
    value = row.settings.get(key)
    if key == "model.layers":
        return f"{value} layer{'' if value == 1 else 's'}"
    return str(value) if isinstance(value, str) else f"{key.rpartition('.')[2]} {value}"


def _speedup_slot(row: Row) -> Slot | None:
    ratio = None if row.speedup is None else row.speedup.mid
    return _slot(row, 1.0 if row.is_baseline else ratio, row.speedup)


def _speed_slot(row: Row) -> Slot | None:
    return _slot(row, None if row.tokens_per_s is None else row.tokens_per_s.mid, row.tokens_per_s)


def _empty(row: Row, notes: dict[str, int], room_in: float, size_pt: float) -> Slot:
    return Slot(arm=row.shown, text=_absence(row, notes, room_in, size_pt))


def _slot(row: Row, height: float | None, whisker: Interval | None) -> Slot | None:
    if row.step_s is None or row.tokens_per_s is None or height is None:
        return None
    noisy = row.outcome is Outcome.NOISY
    shown = row.step_s.mid * 1e3 if row.is_layer else row.tokens_per_s.mid
    text = f"{'~' if noisy else ''}{number(shown, 3)}{MARK if row.unproven else ''}"
    spread = None if row.simulated else whisker
    return Slot(arm=row.shown, text=text, height=height, whisker=spread, noisy=noisy)


def _absence(row: Row, notes: dict[str, int], room_in: float, size_pt: float) -> str:
    """`n/a: reason`, or the outcome and the numbers of notes below the figure where the reason is too long."""
    word = "no speed-up" if row.timed else str(row.outcome or "not measured")
    reason = row.missing["speedup"] if row.timed else row.why
    lacking = row.outcome is Outcome.UNSUPPORTED
    short = f"n/a: {reason}" if lacking else f"n/a: {word}: {reason}"
    if width_in(short, size_pt) <= room_in:
        return short
    # A cell that asks for several features may lack something for each: rows that share a reason share its note.
    parts = reason.split("; ") if lacking else [reason]
    marks = [str(notes.setdefault(part, len(notes) + 1)) for part in parts]
    return f"n/a: {word} ({', '.join(marks)})"


def _numbered(notes: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"({mark}) {reason}." for reason, mark in notes.items())
