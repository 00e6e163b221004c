"""How far two sequences are apart."""

from __future__ import annotations

from collections.abc import Sequence


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Levenshtein's distance: the fewest insertions, deletions and substitutions that make b of a."""
    above = list(range(len(b) + 1))
    for row, left in enumerate(a, start=1):
        here = [row]
        for column, right in enumerate(b, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (left != right)))
        above = here
    return above[-1]
