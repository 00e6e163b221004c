"""A table as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.tables import Table


def markdown(table: Table) -> str:
    """Title, table, control, notes, caption, figure and the commands that run each row again."""
    return "\n".join(_lines(table)) + "\n"


def _lines(table: Table) -> Iterator[str]:
    yield from (f"# {table.title}", "", *_grid(table, table.cells), "")
    if table.control_cells:
        yield from ("What noise alone does (the baseline a second time):", "", *_grid(table, table.control_cells), "")
    if table.notes:
        yield from ("Why cells are empty or in doubt:", "", *(f"- {note}" for note in table.notes), "")
    yield from ("Conditions:", "", *(f"- {sentence}" for sentence in table.conditions), "")
    yield from ("Methods:", "", *(f"- {sentence}" for sentence in table.methods), "")
    yield from (f"![{table.figure_caption}](figure.png)", "", f"*{table.figure_caption}*", "")
    yield from ("To run a row again:", "", "```sh")
    for name, command in table.commands:
        yield from (f"# {name}", command)
    yield "```"


def _grid(table: Table, cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Padded, so that it also reads well in a terminal."""
    lines = [[column.heading for column in table.columns], *([_escape(cell) for cell in line] for line in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [column.numeric for column in table.columns]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    for line in (lines[0], rule, *lines[1:]):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        yield f"| {' | '.join(padded)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
