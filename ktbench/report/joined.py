"""Speeds of one run beside answers of another, joined by arm: a large slice is timed where a small model answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ktbench.files import write_whole
from ktbench.report.accuracy_table import AccuracyColumn, accuracy_columns
from ktbench.report.conditions import headline
from ktbench.report.data import csv_of, json_of
from ktbench.report.markdown import grid
from ktbench.report.table import cells_of, notes_of, split_columns
from ktbench.report.template import render
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, accuracy_rows, frontier_of
from ktbench.results.quantities.columns import ends_of
from ktbench.results.quantities.table import BY_NAME
from ktbench.results.quantities.text import DASH
from ktbench.results.row import Row
from ktbench.results.rows import rows_of
from ktbench.results.settings import model_title
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

_T = TypeVar("_T")
# What an arm of one name must have in both runs: else its speed and its answers are of different engines.
_SAME: dict[str, Callable[[RunSpec], object]] = {
    "system": lambda spec: spec.system,
    "precision": lambda spec: spec.precision,
    "device_precision": lambda spec: spec.device_precision,
    "inject": lambda spec: spec.inject.name,
    "engine": lambda spec: spec.engine.label,
    "content of engine.own_file": lambda spec: spec.engine.own_id,
}
# Headings say the provenance; the others stand in the table of the answers alone.
_LEFT_OUT = (
    "arm",
    "provenance",
    "relative change (%)",
    "flips (questions)",
    "p (exact McNemar)",
    "answer length (tokens)",
    "length (× baseline's)",
    "evidence (counter)",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The arms that both runs have, in the order of the timed one: what was timed and what answered.

    `alone` are labels of arms that one run has and the other lacks, by the folder of the one.
    """

    timed: Run
    answered: Run
    arms: tuple[tuple[Row, AccuracyRow], ...]
    alone: dict[str, tuple[str, ...]]

    @property
    def rows(self) -> tuple[AccuracyRow, ...]:
        """The answers beside the row that was timed in place of their own."""
        return tuple(replace(answers, row=row) for row, answers in self.arms)


def joined(one: Run, other: Run) -> Joined:
    """Two runs joined, whichever of them has the answers.

    Raises RequestError where not one of them is an evaluation, for a run of several parts or of several cells of an
    arm, and for runs without a common arm or with one that differs between them.
    """
    timed, answered = (one, other) if other.header.suite is not None else (other, one)
    if answered.header.suite is None or timed.header.suite is not None:
        which = "neither is one" if answered.header.suite is None else "both are one"
        raise _refused(one, other, f"one run has speeds, the other is an evaluation with answers: {which}")
    for run in (one, other):
        if len(run.header.parts) > 1:
            raise _refused(one, other, f"{run.folder.name} has several parts, run the one to join by itself")
    speeds = _by_arm(timed, rows_of(timed), lambda row: row)
    answers = _by_arm(answered, accuracy_rows(answered), lambda row: row.row)
    common = [label for label in speeds if label in answers]
    if not common:
        sides = " and ".join(
            f"{run.folder.name} has {', '.join(arms)}" for run, arms in ((timed, speeds), (answered, answers))
        )
        raise _refused(one, other, f"no arm is in both: {sides}")
    for label in common:
        _require_same(label, speeds[label].spec, answers[label].row.spec, (timed, answered))
    return Joined(
        timed=timed,
        answered=answered,
        arms=tuple((speeds[label], answers[label]) for label in common),
        alone={
            timed.folder.name: tuple(label for label in speeds if label not in answers),
            answered.folder.name: tuple(label for label in answers if label not in speeds),
        },
    )


def _refused(one: Run, other: Run, why: str) -> RequestError:
    return RequestError(f"report {one.folder.name} with={other.folder.name}: {why}")


def _by_arm(run: Run, rows: Sequence[_T], row_of: Callable[[_T], Row]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for row in rows:
        if row_of(row).role != "arm":
            continue
        if (label := row_of(row).label) in found:
            varied = ", ".join(row_of(row).settings) or "its cells"
            raise RequestError(
                f"report with=: {run.folder.name} has several cells of {label} ({varied}), name one of each"
            )
        found[label] = row
    return found


def _require_same(label: str, timed: RunSpec, answered: RunSpec, runs: tuple[Run, Run]) -> None:
    for key, value in _SAME.items():
        if value(timed) != value(answered):
            sides = f"{value(timed)} in {runs[0].folder.name} and {value(answered)} in {runs[1].folder.name}"
            raise _refused(*runs, f"{key} of {label} is {sides}")
    if timed.inject.rules != answered.inject.rules:
        raise _refused(*runs, f"inject={timed.inject.name} of {label} has other rules in each")


def joined_markdown(joined: Joined) -> str:
    """Speeds, the Pareto front and answers; headings have the run, the model and the provenance of a column."""
    columns, sentences = split_columns(_columns(joined), joined.rows)
    cells = cells_of(columns, joined.rows)
    text = render(
        "joined.md.j2",
        timed=joined.timed.folder.name,
        answered=joined.answered.folder.name,
        cells=grid([[column.heading for column in columns], *cells], [column.numeric for column in columns]),
        notes=notes_of(_reasons(joined)),
        conditions=(*_conditions(joined), *sentences),
        alone=joined.alone,
    )
    return f"{text.rstrip()}\n"


def _columns(joined: Joined) -> Iterator[AccuracyColumn]:
    speeds = _side(joined.timed, [row for row, _ in joined.arms], [row.provenance for row, _ in joined.arms])
    answers = _side(joined.answered, [one.row for _, one in joined.arms], [one.provenance for _, one in joined.arms])
    standings = {cell: point.standing for cell, point in frontier_of(joined.rows).items()}
    yield AccuracyColumn("arm", lambda row: row.row.label, numeric=False)
    yield AccuracyColumn(f"tokens/s [{speeds}]", lambda row: BY_NAME["tokens_per_s"].text(row.row))
    yield AccuracyColumn(f"speed-up (×) [{speeds}]", lambda row: BY_NAME["speedup"].text(row.row))
    yield AccuracyColumn("Pareto", lambda row: standings.get(row.row.cell, DASH), numeric=False)
    for column in accuracy_columns((), joined.rows, "accuracy"):
        if column.heading not in _LEFT_OUT:
            yield replace(column, heading=f"{column.heading} [{answers}]")


def _side(run: Run, rows: Iterable[Row], provenances: Iterable[str | None]) -> str:
    """`decode: Qwen3-30B-A3B, 4 of 48 layers, measured`: the run, the model and the provenance of a column."""
    models = dict.fromkeys(f"{model_title(one.spec.model.name)}, {one.spec.model.depth}" for one in rows)
    return ", ".join([f"{run.folder.name}: {'; '.join(models)}", *dict.fromkeys(filter(None, provenances))])


def _conditions(joined: Joined) -> Iterator[str]:
    answers = [one.row for _, one in joined.arms]
    yield f"Speed: {joined.timed.folder.name}, {headline(joined.timed, [row for row, _ in joined.arms])}."
    yield f"Answers: {joined.answered.folder.name}, {headline(joined.answered, answers)}."
    if any(row.spec.model != one.row.spec.model for row, one in joined.arms):
        yield "Speed and answers are of different models: the table has no measurement of both together."


def _reasons(joined: Joined) -> Iterator[tuple[str, str]]:
    for row, answers in joined.arms:
        if not row.timed:
            yield row.label, f"{joined.timed.folder.name}: {row.ending}"
        if answers.why:
            yield row.label, f"{joined.answered.folder.name}: {answers.outcome or 'not evaluated'}: {answers.why}"


def joined_lines(joined: Joined) -> Iterator[dict[str, Any]]:
    """For each arm what it is, its speed and its average score, each with its run, model and provenance."""
    points = frontier_of(joined.rows)
    for row, answers in joined.arms:
        result, point = answers.result(), points.get(row.cell)
        change = result.change if result else None
        yield {
            "label": row.label,
            **_origin("speed", joined.timed, row, row.provenance),
            "speed_outcome": row.outcome,
            **ends_of("tokens_per_s", row.tokens_per_s),
            **ends_of("speedup", row.speedup),
            **_origin("score", joined.answered, answers.row, answers.provenance),
            "score_outcome": answers.outcome,
            **ends_of("score", answers.score),
            **ends_of("difference", change.difference if change else None),
            **ends_of("kl_nats", result.kl if result else None),
            "is_pareto": point and point.is_pareto,
            "pareto": point and point.standing,
        }


def _origin(side: str, run: Run, row: Row, provenance: str | None) -> dict[str, Any]:
    model = row.spec.model
    return {
        f"{side}_run": run.header.run,
        f"{side}_model": model.name,
        f"{side}_layers": model.shape.layers,
        f"{side}_of_layers": model.full_layers,
        f"{side}_provenance": provenance,
        f"{side}_spec_id": row.spec_id,
    }


def write_joined(joined: Joined, folder: Path, name: str) -> list[Path]:
    """Write `<name>.md`, `.csv` and `.json` into a folder and return their paths. Raises NotWritten."""
    lines = [*joined_lines(joined)]
    content = {"rows": lines, "alone": joined.alone, "conditions": [*_conditions(joined)]}
    texts = {"md": joined_markdown(joined), "csv": csv_of(lines), "json": json_of(content)}
    return [write_whole(folder / f"{name}.{ending}", text) for ending, text in texts.items()]
