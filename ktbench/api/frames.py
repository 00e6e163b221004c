"""A run as pandas frames: one row for each observation, units in the names of columns, `provenance` in each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ktbench.report.data import sample_lines, score_lines
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows
from ktbench.results.paper import PaperLine, paper_lines
from ktbench.results.quantities.frame import frame_of
from ktbench.results.rows import rows_of
from ktbench.results.run import parts_of


def samples_frame(run: Run) -> pd.DataFrame:
    """A row for each timed step of each round: `step_s` in seconds; of served requests, seconds per output token."""
    return frame_of(run, [*sample_lines(rows_of(run))])


def scores_frame(run: Run) -> pd.DataFrame:
    """A row for each score and each measure of each cell that answered questions; empty without a suite."""
    if run.header.suite is None:
        return frame_of(run, [])
    return frame_of(
        run, [line for part in parts_of(run) for row in accuracy_rows(part) for line in score_lines(part, row)]
    )


def answers_frame(run: Run) -> pd.DataFrame:
    """A row for each answer that counts, with its value by `metric`; empty without a suite."""
    ends = run.ends()
    return frame_of(
        run,
        [
            {
                "label": ends[where].label,
                "task": answer.task,
                "question": answer.question,
                "sample": answer.sample,
                "metric": answer.metric,
                "value": answer.value,
                "weight": answer.weight,
                "tokens": answer.tokens,
                "answer": answer.answer,
                "why": answer.why,
                "provenance": ends[where].provenance,
                "cell": answer.cell,
            }
            for where, answers in run.answers().items()
            for answer in answers
        ],
    )


def published_frame(run: Run) -> pd.DataFrame:
    """A row for each published number of the run and for its simulated and measured values, in `unit`."""
    parts = [part for part in parts_of(run) if part.header.parts[0].published]
    lines = [(part, line) for part in parts for line in paper_lines(part, rows_of(part))]
    return frame_of(run, [value for part, line in lines for value in _values(part, line)])


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
