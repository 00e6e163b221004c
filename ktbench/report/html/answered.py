"""The figures of a run that asks a suite, of the kind that its part asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.report.documents import Document
from ktbench.report.html.answers import answers_pictures
from ktbench.report.html.cards import Dealt
from ktbench.report.html.counts import all_counted, counts_pictures
from ktbench.report.html.drift import drift_picture
from ktbench.report.html.formats import formats_picture
from ktbench.report.html.frontier import frontier_picture
from ktbench.report.html.picture import Picture


def answered_pictures(document: Document, dealt: Dealt) -> Iterator[Picture]:
    """What the kind of figure asks for, the changes of the scores, and what is measured of documents."""
    rows, table = document.answers, document.table
    found: list[Picture | None] = []
    if table.figure == "deferral_accuracy":
        found += counts_pictures(rows, document.lines, dealt)
    elif table.figure == "precision_accuracy":
        found.append(formats_picture(rows, table.figure_caption, dealt))
    elif table.figure == "frontier":
        found.append(frontier_picture(rows, dealt))
    if table.figure != "deferral_accuracy" or not all_counted(rows):
        found += answers_pictures(rows, dealt, parts=table.figure == "accuracy")
    found.append(drift_picture(rows, dealt))
    yield from (picture for picture in found if picture is not None)
