"""`report`: rebuilds tables and figures of a run from its log alone."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import yaml

from ktbench.cli.streams import is_json
from ktbench.host.fonts import require_font
from ktbench.report.documents import documents_of, page_of
from ktbench.report.joined import joined, joined_lines, joined_markdown, write_joined
from ktbench.report.write import FORMATS, TEXTS, json_lines, texts_of, write_report
from ktbench.results import read_run
from ktbench.results.find import find_run
from ktbench.spec.errors import RequestError
from ktbench.spec.sweep import FigureStyle
from ktbench.spec.wire import from_plain, to_plain

_WITH = "with="
STYLE_KEYS = tuple(field.name for field in fields(FigureStyle))


def run(overrides: Sequence[str]) -> int:
    """Rebuild the report of a run and print its table; of a single format of text that alone.

    With `with=OTHER` print and write the table of both instead: the speeds of one, the answers of the other. Raises
    RequestError for an unknown run, format or setting, and for runs that cannot be joined.
    """
    if not overrides:
        raise RequestError("report: name a run: a folder, a name under runs/, or latest")
    name, *words = overrides
    if others := [word for word in words if word.startswith(_WITH)]:
        return _join(name, others[0].removeprefix(_WITH), [word for word in words if word != others[0]])
    formats = [word for word in words if "=" not in word]
    style = style_of([word for word in words if "=" in word])
    with _without_collection():
        stored = read_run(find_run(name))
        documents = documents_of(stored, style)
        written = write_report(stored, formats or FORMATS, documents)
        if is_json():
            print("\n".join(json_lines(stored, documents, written)))
            return 0
        alone = formats[0] if len(formats) == 1 and formats[0] in TEXTS else ""
        print("\n".join(texts_of(documents, alone)).rstrip("\n") if alone else page_of(stored, documents))
    for path in written:
        print(f"wrote {path}", file=sys.stderr if alone else sys.stdout)
    return 0


def _join(name: str, other: str, words: Sequence[str]) -> int:
    if words:
        raise RequestError(f"report {_WITH}{other}: writes md, csv and json, leave out {words[0]}")
    one, two = read_run(find_run(name)), read_run(find_run(other))
    both = joined(one, two)
    written = write_joined(both, one.folder / "report", f"joined-{two.folder.name}")
    if is_json():
        print("\n".join(json.dumps(to_plain(line), allow_nan=False) for line in joined_lines(both)))
    else:
        print("\n".join([joined_markdown(both), *(f"wrote {path}" for path in written)]))
    return 0


def style_of(words: Sequence[str]) -> FigureStyle:
    """Settings of figures and tables: `width=3.3`, `font="Times New Roman"`, `labels={+v: Fused}`, `order=[+v,base]`.

    Raises RequestError for an unknown key, and for a value that is none.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in STYLE_KEYS:
            raise RequestError(f"report {key}=: no such setting, allowed are {', '.join(STYLE_KEYS)}")
        try:
            found[key] = value if key == "font" else yaml.safe_load(value)
        except yaml.YAMLError:
            raise RequestError(f"report {word}: is no YAML, such as labels='{{+v: Fused}}'") from None
    try:
        style = from_plain(found, FigureStyle)
    except ValueError as error:
        raise RequestError(f"report {error}") from None
    if style.font:
        require_font("font", style.font)
    return style


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without garbage collection: rows live until the report is written, scanning them takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
