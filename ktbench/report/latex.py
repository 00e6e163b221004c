"""A table as LaTeX, for the booktabs and graphicx packages."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.report.tables import Table

_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "—": "---",
        "±": r"$\pm$",
        "×": r"$\times$",
        "µ": r"$\mu$",
        "†": r"$\dagger$",
        "‖": r"$\Vert$",
        "[": "{[}",  # a bracket after \\ would be read as its argument
    }
)


def latex(table: Table) -> str:
    """A `table` and a `figure` environment; commands that run each row again as comments."""
    caption = " ".join([table.figure_caption, *table.conditions])
    return "\n".join([*table_lines(table), *figure_lines(f"{table.figure_name}.pdf", caption)]) + "\n"


def table_lines(table: Table) -> Iterator[str]:
    """A `table` environment below the commands that run each row again."""
    yield "% needs \\usepackage{booktabs,graphicx}"
    yield from (f"% {name}: {command}" for name, command in table.commands)
    yield from (r"\begin{table*}", r"\centering", r"\footnotesize")
    yield f"\\caption{{{_escaped(' '.join([f'{table.title}.', *table.conditions, *table.methods]))}}}"
    yield r"\resizebox{\linewidth}{!}{%"
    yield f"\\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}"
    yield r"\toprule"
    yield _line(tuple(column.heading for column in table.columns))
    yield r"\midrule"
    yield from map(_line, table.cells)
    if table.control_cells:
        yield r"\midrule"
        yield from map(_line, table.control_cells)
    yield from (r"\bottomrule", r"\end{tabular}}")
    if table.notes or table.remarks:
        yield r"\par\raggedright"
        yield from (f"{_escaped(note)}\\\\" for note in (*table.notes, *table.remarks))
    yield r"\end{table*}"


def figure_lines(path: str, caption: str) -> Iterator[str]:
    """A `figure` environment; `path` is taken as it is, the caption escaped."""
    yield from (r"\begin{figure}", r"\centering", f"\\includegraphics[width=\\linewidth]{{{path}}}")
    yield f"\\caption{{{_escaped(caption)}}}"
    yield r"\end{figure}"


def _line(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
