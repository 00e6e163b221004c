"""The columns of a table of answers: heading with its unit, and how a row's cell reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ktbench.report.accuracy.text import (
    change_text,
    error_text,
    flips_text,
    p_text,
    score_interval_text,
    spread_text,
)
from ktbench.report.agreement import REFERENCE
from ktbench.report.text import DASH, interval, number
from ktbench.results.accuracy import AccuracyRow, frontier_of
from ktbench.results.answers import KL, PERPLEXITIES, TOP1, Measure
from ktbench.results.scores import Change
from ktbench.results.settings import setting_text
from ktbench.spec.sweep import FigureKind

Write = Callable[[AccuracyRow], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyColumn:
    """`movable`: where all rows say the same, the conditions say it once instead. `numeric` columns align right."""

    heading: str
    write: Write
    movable: bool = False
    numeric: bool = True


def accuracy_columns(
    settings: Sequence[str], rows: Sequence[AccuracyRow], figure: FigureKind
) -> tuple[AccuracyColumn, ...]:
    """All columns of a table of `rows`, with one for each setting that varies, and the speed where it was measured."""
    return (
        AccuracyColumn(heading="arm", write=lambda row: row.row.shown, numeric=False),
        *(AccuracyColumn(heading=key, write=_setting(key)) for key in settings),
        AccuracyColumn(heading="outcome", write=_outcome, movable=True, numeric=False),
        *(_speed(rows) if figure == "frontier" else ()),
        *_SCORES,
        *_measures(rows),
        AccuracyColumn(heading="evidence (counter)", write=lambda row: row.evidence or DASH, numeric=False),
        AccuracyColumn(heading="provenance", write=lambda row: row.provenance or DASH, movable=True, numeric=False),
    )


def _setting(key: str) -> Write:
    return lambda row: setting_text(row.row.settings.get(key))


def _outcome(row: AccuracyRow) -> str:
    return "not asked" if row.outcome is None else str(row.outcome)


def _speed(rows: Sequence[AccuracyRow]) -> Iterator[AccuracyColumn]:
    points = frontier_of(rows)

    def pareto(row: AccuracyRow) -> str:
        point = points.get(row.row.cell)
        return DASH if point is None else "yes" if point.is_pareto else "no"

    def speed(row: AccuracyRow) -> str:
        return DASH if row.row.tokens_per_s is None else interval(row.row.tokens_per_s)

    yield AccuracyColumn(heading="speed (tokens/s)", write=speed)
    yield AccuracyColumn(heading="Pareto", write=pareto, numeric=False)


def _score(row: AccuracyRow) -> str:
    result = row.result()
    return score_interval_text(None if result is None else result.score)


def _graded(row: AccuracyRow) -> str:
    result = row.result()
    return f"{result.graded}/{result.asked}" if result and result.score else DASH


def _of_change(write: Callable[[Change | None], str]) -> Write:
    return lambda row: write(_change(row))


def _change(row: AccuracyRow) -> Change | None:
    result = row.result()
    return None if result is None else result.change


def _verdict(row: AccuracyRow) -> str:
    result = row.result()
    if row.is_baseline and result and result.score:
        return "baseline"
    return str(result.change.verdict) if result and result.change else DASH


def _tokens(row: AccuracyRow) -> str:
    result = row.result()
    return DASH if result is None or result.tokens is None else number(result.tokens, 3)


def _longer(row: AccuracyRow) -> str:
    result = row.result()
    return DASH if result is None or result.longer is None else f"{result.longer:.2f}"


_SCORES = (
    AccuracyColumn(heading="score (% ± SE [95 % interval])", write=_score),
    AccuracyColumn(heading="graded/asked (questions)", write=_graded, movable=True),
    AccuracyColumn(
        heading="difference (points)", write=_of_change(lambda c: change_text(None if c is None else c.difference))
    ),
    AccuracyColumn(
        heading="relative change (%)", write=_of_change(lambda c: change_text(None if c is None else c.relative))
    ),
    AccuracyColumn(heading="flips (questions)", write=_of_change(flips_text)),
    AccuracyColumn(heading="p (exact McNemar)", write=_of_change(p_text)),
    AccuracyColumn(heading="verdict", write=_verdict, numeric=False),
    AccuracyColumn(heading="answer length (tokens)", write=_tokens),
    AccuracyColumn(heading="length (× baseline's)", write=_longer),
)


def _measures(rows: Sequence[AccuracyRow]) -> Iterator[AccuracyColumn]:
    """Columns of what is measured in place of a score, each with its task where there are several."""
    found = dict.fromkeys((one.task, one.metric) for row in rows for one in row.measures)
    several = len({task for task, _ in found}) > 1
    for task, metric in found:
        of = f"{task}: " if several else ""
        for heading, write in _METRICS[metric].items():
            yield AccuracyColumn(heading=of + heading, write=_of_measure(task, metric, write))


def _of_measure(task: str, metric: str, write: Callable[[Measure], str]) -> Write:
    def written(row: AccuracyRow) -> str:
        found = next((one for one in row.measures if (one.task, one.metric) == (task, metric)), None)
        if found is None:
            return DASH
        return REFERENCE if row.is_baseline and metric in (KL, TOP1) else write(found)

    return written


def _perplexity(name: str) -> dict[str, Callable[[Measure], str]]:
    return {
        name: lambda one: spread_text(one.value),
        f"change of {name} (%)": lambda one: change_text(one.change),
    }


_METRICS: dict[str, dict[str, Callable[[Measure], str]]] = {
    **{metric: _perplexity(name) for metric, name in PERPLEXITIES.items()},
    KL: {"KL (nats ± SE)": lambda one: error_text(one.value)},
    TOP1: {"top-1 agreement (% ± SE)": lambda one: error_text(one.value, 100)},
}
