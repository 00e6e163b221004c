"""Renders the templates that ship with the report: Markdown, LaTeX and sentences."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ktbench.report.text import counted, span
from ktbench.results.quantities.text import in_gib, number, ratio, unit_of
from ktbench.results.settings import model_title
from ktbench.spec.errors import one_line, printable

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_TEMPLATES = files("ktbench.report") / "templates"
_DELIMITERS = tuple(f"{what}_{end}_string" for what in ("block", "variable", "comment") for end in ("start", "end"))


def render(name: str, /, **values: Any) -> str:
    """The text of a template, with control characters as escapes; values are escaped in `.html.j2` alone.

    Raises jinja2.UndefinedError for a name without a value.
    """
    return printable(_template(name).render(values))


def sentences(name: str, macro: str = "", /, **values: Any) -> tuple[str, ...]:
    """The lines of a template, or of one of its macros, that holds one sentence a line; empty ones left out."""
    return _lines(getattr(_template(name).module, macro)(**values) if macro else render(name, **values))


def phrase(template: str, macro: str, /, **values: Any) -> str:
    """The text of a macro on one line; may be empty."""
    return " ".join(sentences(template, macro, **values))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in map(str.strip, text.splitlines()) if line)


def _template(name: str) -> Template:
    return _environment(is_latex=name.endswith(".tex.j2")).get_template(name)


@cache
def _environment(*, is_latex: bool) -> Environment:
    """LaTeX is full of braces: its templates have `<< value >>`, `<% statement %>` and `<# comment #>`."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # takes 50 ms to load

    ours = ("<%", "%>", "<<", ">>", "<#", "#>") if is_latex else ("{%", "%}", "{{", "}}", "{#", "#}")
    delimiters: dict[str, Any] = dict(zip(_DELIMITERS, ours, strict=True))

    environment = Environment(
        loader=FunctionLoader(lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **delimiters,
    )
    environment.filters |= {
        "comma_joined": lambda text: ", ".join(_lines(text)),
        "counted": counted,
        "gib": in_gib,
        "model_title": model_title,
        "number": number,
        "one_line": one_line,
        "ratio": ratio,
        "unit_of": unit_of,
    }
    environment.globals["span"] = span
    return environment
