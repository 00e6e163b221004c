"""A table of answers as Markdown, with the grids by category and by formats below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.accuracy.table import Below
from ktbench.report.markdown import grid, section
from ktbench.report.tables import Table


def accuracy_markdown(table: Table, below: Sequence[Below]) -> str:
    """Title, table, the grids `below` it, then notes, conditions, methods, figure and commands as for any table."""
    lines = list(section(table))
    end = lines.index("") + 1
    return "\n".join([f"# {table.title}", "", *lines[:end], *below_lines(below), *lines[end:]]) + "\n"


def below_lines(below: Sequence[Below]) -> Iterator[str]:
    """Each grid below its title."""
    for one in below:
        yield from (f"{one.title}:", "", *below_grid(one), "")


def below_grid(one: Below) -> Iterator[str]:
    """A grid without its title."""
    return grid([one.headings, *one.lines], [False, *(True for _ in one.headings[1:])])
