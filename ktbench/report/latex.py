"""A table as LaTeX, for the booktabs and graphicx packages."""

from __future__ import annotations

import re
from typing import Any

from ktbench.report.table import Table
from ktbench.report.template import render
from ktbench.report.text import setting_name
from ktbench.spec.errors import one_line

_KEY = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")
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
    return latex_of("table", table=table)


def latex_of(template: str, **values: Any) -> str:
    """The text of `<template>.tex.j2`, in which `tex` escapes a text and `heading` has words for it."""
    return f"{render(f'{template}.tex.j2', tex=escaped, heading=heading, **values).rstrip()}\n"


def heading(name: str) -> str:
    """A heading in words: a table names a setting by its key, `workload.prompt`, which a paper does not know."""
    return setting_name(name) if _KEY.fullmatch(name) else name


def escaped(text: str) -> str:
    """A text on one line with what is special to LaTeX written out."""
    return one_line(text).translate(_SPECIAL)
