"""How good predictions are: errors at the median, at 90 %, at most, and on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """Relative errors of `cells` cells: absolute ones at the median, 90 % and the most, and the mean of signed ones."""

    cells: int
    median: float
    p90: float
    worst: float
    bias: float


def quality_of(errors: Sequence[float]) -> Quality:
    """Of at least one signed relative error. Raises ValueError for none."""
    if not errors:
        raise ValueError("errors: none to judge by")
    off = np.abs(errors)
    return Quality(
        cells=len(errors),
        median=float(np.median(off)),
        p90=float(np.quantile(off, 0.9)),
        worst=float(off.max()),
        bias=float(np.mean(errors)),
    )
