"""A table as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.tables import Table


def markdown(table: Table) -> str:
    """Title, table, control, notes, caption, figure and the commands that run each row again."""
    return "\n".join([f"# {table.title}", "", *section(table)]) + "\n"


def section(table: Table) -> Iterator[str]:
    """Lines of a table below its title."""
    yield from (*table_grid(table, table.cells), "")
    if table.control_cells:
        yield from ("What noise alone does (the baseline a second time):", "")
        yield from (*table_grid(table, table.control_cells), "")
    yield from listed("Why cells are empty or in doubt", table.notes)
    yield from listed("Remarks of the systems", table.remarks)
    yield from listed("Conditions", table.conditions)
    yield from listed("Methods", table.methods)
    yield from (f"![{table.figure_caption}]({table.figure_name}.png)", "", f"*{table.figure_caption}*", "")
    yield from ("To run a row again:", "", "```sh")
    for name, command in table.commands:
        yield from (f"# {name}", command)
    yield "```"


def listed(heading: str, sentences: Sequence[str]) -> Iterator[str]:
    """A heading with sentences as items; nothing without any."""
    if sentences:
        yield from (f"{heading}:", "", *(f"- {sentence}" for sentence in sentences), "")


def table_grid(table: Table, cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells below the headings of their table."""
    headings = [column.heading for column in table.columns]
    return grid([headings, *([_escape(cell) for cell in line] for line in cells)], [c.numeric for c in table.columns])


def grid(lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Iterator[str]:
    """Headings and cells with a rule between them, padded, so that it also reads well in a terminal."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, numeric, strict=True)]
    for line in (lines[0], rule, *lines[1:]):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        yield f"| {' | '.join(padded)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
