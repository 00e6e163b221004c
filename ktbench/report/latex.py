"""A table as LaTeX, for the booktabs and graphicx packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ktbench.report.table import Table

# What follows up to the next brace, at its own size or as wide as the text.
_FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
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
        "–": "--",
        "…": r"\ldots{}",
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
    yield from tabular_lines(table)
    if table.notes or table.remarks:
        yield r"\par\raggedright"
        yield from (f"{_escaped(note)}\\\\" for note in (*table.notes, *table.remarks))
    yield r"\end{table*}"


def short_table_lines(table: Table) -> Iterator[str]:
    """A `table` environment with a caption of one sentence; `text_lines` has the rest."""
    yield from (r"\begin{table*}", r"\centering", r"\small")
    yield f"\\caption{{{_escaped(table.title)}}}"
    yield from tabular_lines(table)
    yield r"\end{table*}"


def tabular_lines(table: Table) -> Iterator[str]:
    """A `tabular`, made smaller where it is wider than the text."""
    yield f"{_FITTED}%"
    yield f"\\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}"
    yield r"\toprule"
    yield _line(table.headings)
    yield r"\midrule"
    yield from map(_line, table.cells)
    if table.control_cells:
        yield r"\midrule"
        yield from map(_line, table.control_cells)
    yield from (r"\bottomrule", r"\end{tabular}}")


def text_lines(title: str, sentences: Iterable[str]) -> Iterator[str]:
    """A paragraph of sentences."""
    yield f"\\paragraph{{{_escaped(title)}}} {_escaped(' '.join(sentences))}"


def figure_lines(path: str, caption: str) -> Iterator[str]:
    """A `figure` environment over all columns; `path` is taken as it is, the caption escaped."""
    yield from (r"\begin{figure*}", r"\centering", f"{_FITTED}\\includegraphics{{{path}}}}}")
    yield f"\\caption{{{_escaped(caption)}}}"
    yield r"\end{figure*}"


def _line(cells: tuple[str, ...]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
