"""What cells are called on a terminal, and their rows under headings that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ktbench.results.row import Row, groups_of
from ktbench.results.settings import TOKENS, Setting, alike, setting_text, settings_of, varying
from ktbench.spec.record import Cell
from ktbench.spec.sweep import PRECISIONS


def cell_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Name of each cell by its key: its part, then what it is called there."""
    parts = dict.fromkeys(cell.part for cell in cells)
    return {
        key: f"{part} {name}".strip()
        for part in parts
        for key, name in names_in_part([cell for cell in cells if cell.part == part]).items()
    }


def names_in_part(cells: Sequence[Cell]) -> dict[str, str]:
    """Name of each cell of one part by its key: its label, and where it stands on what the part varies."""
    keyed = alike(settings_of(cell.spec) for cell in cells)
    settings = {cell.key: one for cell, one in zip(cells, keyed, strict=True)}
    keys = _told(varying(settings.values()), (cell.label for cell in cells))
    points = {cell.key: _point({key: settings[cell.key].get(key) for key in keys}) for cell in cells}
    return {cell.key: f"{cell.label} ({points[cell.key]})" if keys else cell.label for cell in cells}


def listing(
    rows: Sequence[Row], lines: Callable[[Row], Iterable[str]], among: Sequence[Row] | None = None
) -> Iterator[str]:
    """The lines of rows, each point below what varies apart from tokens per expert, which rows name.

    `among` are all rows of their part, which decide what varies (None: `rows` are all).
    """
    every = groups_of(rows if among is None else among)
    keys = [key for key in varying([group[0].settings for group in every]) if key != TOKENS]
    for group in groups_of(rows):
        if keys:
            yield f"{_point({key: group[0].settings.get(key) for key in keys})}:"
        for row in group:
            yield from lines(row)


def _told(keys: Sequence[str], labels: Iterable[str]) -> list[str]:
    """Without the precision where labels name it."""
    worded = any(word in PRECISIONS for label in labels for word in label.split())
    return [key for key in keys if not (key == "precision" and worded)]


def _point(settings: dict[str, Setting]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {setting_text(value)}" for key, value in settings.items())
