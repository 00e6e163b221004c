"""`report`: tables and figures again, from the store alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SUMMARY = "tables and figures of a run again, from its log alone: RUN [md|csv|json|tex|figure|html|pdf|kit ...]"


def run(overrides: Sequence[str]) -> int:
    """Rebuild the report of a run and print its table. Raises RequestError for an unknown run or format."""
    from ktbench.report.documents import documents_of, page_of
    from ktbench.report.write import FORMATS, write_report
    from ktbench.results import read_run
    from ktbench.results.find import find_run
    from ktbench.spec.errors import RequestError

    if not overrides:
        raise RequestError("report: name a run: a folder, a name under runs/, or latest")
    name, *formats = overrides
    with _without_collection():
        stored = read_run(find_run(name))
        documents = documents_of(stored)
        written = write_report(stored, formats or FORMATS, documents)
        print(page_of(stored, documents))
    for path in written:
        print(f"wrote {path}")
    return 0


@contextmanager
def _without_collection() -> Iterator[None]:
    """Rows live until the report is written: looking for garbage among many takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
