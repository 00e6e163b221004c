"""A row of answers as one line, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ktbench.report.accuracy.text import change_text, error_text, flips_text, p_text, score_text, spread_text
from ktbench.report.text import number
from ktbench.results.accuracy import AccuracyRow, Result
from ktbench.results.answers import KL, LOSSES, Measure


def accuracy_line(row: AccuracyRow, width: int = 16) -> str:
    """Score, questions, change, flips, verdict and length of answers; its name is `width` letters wide."""
    name = f"{row.row.shown:<{width}}"
    if row.why:
        return f"{name} {row.outcome or 'not asked'}: {row.why}"
    result = row.result()
    scored = _scored(result, is_baseline=row.is_baseline) if result and result.score else ()
    return "  ".join([name, *scored, *_measured(row)])


def _scored(result: Result, *, is_baseline: bool) -> Iterator[str]:
    yield f"{score_text(result.score):>11} %"
    yield f"{result.graded:>6,} of {result.asked:,} graded"
    yield f"{'the baseline' if is_baseline else _changed(result):<66}"
    if result.tokens is not None:
        yield f"{number(result.tokens, 3):>5} tokens"


def _changed(result: Result) -> str:
    change = result.change
    if change is None:
        return result.missing["change"]
    moved = f"{change_text(change.relative)} %"
    return f"{moved:<23}  {flips_text(change):>9} p {p_text(change):<7}  {change.verdict}"


def _measured(row: AccuracyRow) -> Iterator[str]:
    for one in row.measures:
        if one.metric in LOSSES:
            yield f"perplexity {spread_text(one.value)}{_moved(one)}"
        elif not row.is_baseline:
            kl = one.metric == KL
            yield f"KL {error_text(one.value)} nats" if kl else f"top-1 {error_text(one.value, 100)} %"


def _moved(one: Measure) -> str:
    return f" ({change_text(one.change)} %)" if one.change else ""
