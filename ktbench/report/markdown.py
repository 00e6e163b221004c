"""Tables as Markdown, padded so that they read well in a terminal, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ktbench.report.table import Grid, Table
from ktbench.report.template import render
from ktbench.spec.errors import one_line


def markdown(table: Table) -> str:
    """Title, table, grids, control, notes, conditions, figure and the commands that run each row again."""
    return _rendered(title=table.title, tables=[table], is_page=False, conditions=(), methods=())


def page_of_tables(title: str, tables: Sequence[Table]) -> str:
    """A table alone as it is; parts of a run below a common title, with what holds for all of them once at the end."""
    if len(tables) == 1 and not tables[0].part:
        return markdown(tables[0])
    conditions, methods = (common_to(texts) for texts in ([t.conditions for t in tables], [t.methods for t in tables]))
    own = [
        replace(table, conditions=_without(table.conditions, conditions), methods=_without(table.methods, methods))
        for table in tables
    ]
    return _rendered(title=title, tables=own, is_page=True, conditions=conditions, methods=methods)


def _rendered(**values: Any) -> str:
    text = render("table.md.j2", table_grid=table_grid, grid_of=grid_of, **values)
    return f"{text.rstrip()}\n"


def common_to(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Sentences that all parts have, in the order of the first one."""
    return tuple(sentence for sentence in parts[0] if all(sentence in other for other in parts))


def _without(sentences: Sequence[str], common: Sequence[str]) -> tuple[str, ...]:
    return tuple(sentence for sentence in sentences if sentence not in common)


def table_grid(table: Table, cells: Sequence[Sequence[str]]) -> list[str]:
    """Cells below the headings of their table."""
    return grid([table.headings, *cells], [column.numeric for column in table.columns])


def grid_of(one: Grid) -> list[str]:
    """A grid without its title."""
    return grid([one.headings, *one.lines], [False, *(True for _ in one.headings[1:])])


def grid(lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """Headings and cells with a rule between them; `|` and newlines in a text are escaped."""
    escaped = [[one_line(text).replace("|", "\\|") for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    padded = (
        [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        for line in (escaped[0], rule, *escaped[1:])
    )
    return [f"| {' | '.join(line)} |" for line in padded]
