"""Plain content as files for other programs: lines as CSV, intervals as columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ktbench.results.intervals import Interval, is_exact


def csv_of(lines: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a column for each key of any line, in the order in which keys come; what a line lacks is empty."""
    out = io.StringIO()
    columns = list(dict.fromkeys(key for line in lines for key in line))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def ends_of(name: str, value: Interval | None) -> dict[str, float | None]:
    """Columns `<name>_low`, `<name>`, `<name>_high`; the ends of what is exact are empty, and of None all three."""
    names = (f"{name}_low", name, f"{name}_high")
    ends = (None, None) if value is None or is_exact(value) else (value.low, value.high)
    return dict(zip(names, (ends[0], None if value is None else value.mid, ends[1]), strict=True))
