"""Speed against score: which cells are beaten by none in both."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.results.accuracy import AccuracyRow, FrontierPoint
from ktbench.results.settings import without_precision


def formats_text(row: AccuracyRow) -> str:
    """The format of the experts, and that of the device role where it is another."""
    spec = row.row.spec
    return spec.precision if spec.precision == spec.device_precision else f"{spec.precision}, {spec.device_precision}"


def words_of(points: Sequence[FrontierPoint]) -> tuple[list[str], str]:
    """What stands at each marker, and what it is the number of; nothing where it is no number.

    Words that all arms share are left out. Where one feature alone is left its number is enough, 0 without it.
    """
    labels = [without_precision(point.row.row.shown) for point in points]
    common = set.intersection(*(set(label.split()) for label in labels))
    short = [" ".join(word for word in label.split() if word not in common) for label in labels]
    keys = {text.partition("=")[0] for text in short if text}
    if len(keys) == 1 and all(text.count("=") == 1 for text in short if text):
        return [text.partition("=")[2] or "0" for text in short], keys.pop()
    return [text or label for text, label in zip(short, labels, strict=True)], ""
