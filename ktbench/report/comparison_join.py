"""Which cell of one run is which of another, and what both are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ktbench.results.row import Row, place
from ktbench.results.settings import varying


def joined(before: Sequence[Row], after: Sequence[Row]) -> tuple[tuple[Row, Row], ...]:
    """Rows of equal spec, part and role, in the order of the first run.

    Where parts are called otherwise, as in a sweep that is a part of another, a spec that both runs have left only once
    joins by itself.
    """
    there, here = ({row.cell: row for row in rows} for rows in (before, after))
    left = _once([row for row in after if row.cell not in there])
    alone = _once([row for row in before if row.cell not in here])
    pairs = ((row, here.get(row.cell) or (left.get(_asked(row)) if _asked(row) in alone else None)) for row in before)
    return tuple((row, other) for row, other in pairs if other)


def _once(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows that ask what no other of them does, by what they ask."""
    counts = Counter(map(_asked, rows))
    return {_asked(row): row for row in rows if counts[_asked(row)] == 1}


def _asked(row: Row) -> tuple[str, str]:
    return row.spec_id, row.role


def names_of(rows: Sequence[Row]) -> dict[str, str]:
    """What cells of one or of several runs are called, by key: part, label, and the settings that vary."""
    settings = varying(row.settings for row in rows)
    several = len({row.part for row in rows}) > 1
    return {row.cell: f"{row.part} {place(row, settings)}".strip() if several else place(row, settings) for row in rows}
