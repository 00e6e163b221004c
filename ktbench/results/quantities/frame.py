"""The cells of a run as a pandas frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ktbench.results import Run
from ktbench.results.quantities.columns import columns_of
from ktbench.results.row import Row
from ktbench.results.rows import rows_of


def summary(run: Run, rows: Sequence[Row] | None = None) -> pd.DataFrame:
    """A row for each cell: medians over rounds in SI units with the ends of their intervals, settings, verdicts.

    Columns are those of the CSV. `rows` are those of the run, or some of them, where the caller has them.
    """
    return frame_of(run, [columns_of(run, row) for row in (rows_of(run) if rows is None else rows)])


def frame_of(run: Run, lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of lines, with the run that they are of in its `attrs`."""
    header = run.header
    columns = list(dict.fromkeys(key for line in lines for key in line))
    frame = pd.DataFrame({name: _column([line.get(name) for line in lines]) for name in columns})
    frame.attrs = {"run": header.run, "title": header.title, "created": header.created, "command": list(header.command)}
    return frame


def _column(values: Sequence[Any]) -> pd.Series:
    """Values of one type as that type, with missing ones; those of several, as `auto` beside numbers, as texts.

    A column without any value is one of NaN, as pandas reads it.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds != {int}:
        return pd.Series(values, dtype="float64")
    if kinds in ({int}, {bool}):
        return pd.Series(values, dtype="Int64" if int in kinds else "boolean")
    return pd.Series([None if value is None else str(value) for value in values])
