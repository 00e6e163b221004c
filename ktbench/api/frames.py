"""A run as pandas frames: one row for each observation, units in the names of columns, `provenance` in each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ktbench.report.data import columns_of, sample_lines, score_lines
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows
from ktbench.results.paper import PaperLine, paper_lines
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of


def rows_frame(run: Run) -> pd.DataFrame:
    """A row for each cell: medians over rounds in SI units with the ends of their intervals, settings, verdicts."""
    return _frame(run, [columns_of(run, row) for row in rows_of(run)])


def samples_frame(run: Run) -> pd.DataFrame:
    """A row for each timed step of each round: `step_s` in seconds; of served requests, seconds per output token."""
    return _frame(run, [*sample_lines(rows_of(run))])


def scores_frame(run: Run) -> pd.DataFrame:
    """A row for each score and each measure of each cell that answered questions; empty without a suite."""
    if run.header.suite is None:
        return _frame(run, [])
    return _frame(
        run, [line for part in parts_of(run) for row in accuracy_rows(part) for line in score_lines(part, row)]
    )


def answers_frame(run: Run) -> pd.DataFrame:
    """A row for each answer that counts, with its value by `metric`; empty without a suite."""
    ends = run.ends()
    return _frame(
        run,
        [
            {
                "label": ends[where].label,
                "task": one.task,
                "question": one.question,
                "sample": one.sample,
                "metric": one.metric,
                "value": one.value,
                "weight": one.weight,
                "tokens": one.tokens,
                "answer": one.answer,
                "why": one.why,
                "provenance": ends[where].provenance,
                "cell": one.cell,
            }
            for where, answers in run.answers().items()
            for one in answers
        ],
    )


def published_frame(run: Run) -> pd.DataFrame:
    """A row for each value that the run shows of published numbers: published, simulated or measured, in `unit`."""
    parts = [part for part in parts_of(run) if part.header.parts[0].published]
    lines = [(part, line) for part in parts for line in paper_lines(part, rows_of(part))]
    return _frame(run, [value for part, line in lines for value in _values(part, line)])


def _values(part: Run, line: PaperLine) -> Iterator[dict[str, Any]]:
    shared = ("id", "arm", "machine", "model", "precision", "phase", "tokens", "batch", "conditions", "what")
    for provenance in ("published", "simulated", "measured"):
        if (value := getattr(line, provenance)) is not None:
            yield {
                "part": part.header.parts[0].name,
                **{name: getattr(line, name) for name in shared},
                "provenance": provenance,
                "value": value,
                "unit": line.metric,
                "source": line.source if provenance == "published" else "",
                "cell": line.cell if provenance == "simulated" else "",
            }


def _frame(run: Run, lines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
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
