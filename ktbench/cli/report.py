"""`report`: rebuilds tables and figures of a run from its log alone."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ktbench.cli.streams import is_json
from ktbench.report.documents import documents_of, page_of
from ktbench.report.write import FORMATS, TEXTS, json_lines, texts_of, write_report
from ktbench.results import read_run
from ktbench.results.find import find_run
from ktbench.spec.errors import RequestError


def run(overrides: Sequence[str]) -> int:
    """Rebuild the report of a run and print its table; of a single format of text that alone.

    Raises RequestError for an unknown run or format.
    """
    if not overrides:
        raise RequestError("report: name a run: a folder, a name under runs/, or latest")
    name, *formats = overrides
    with _without_collection():
        stored = read_run(find_run(name))
        documents = documents_of(stored)
        written = write_report(stored, formats or FORMATS, documents)
        if is_json():
            print("\n".join(json_lines(stored, documents, written)))
            return 0
        alone = formats[0] if len(formats) == 1 and formats[0] in TEXTS else ""
        print("\n".join(texts_of(documents, alone)).rstrip("\n") if alone else page_of(stored, documents))
    for path in written:
        print(f"wrote {path}", file=sys.stderr if alone else sys.stdout)
    return 0


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without garbage collection: rows live until the report is written, scanning them takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
