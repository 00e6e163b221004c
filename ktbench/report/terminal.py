"""Rows of speeds and of answers as lines for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from ktbench.report.text import change_text, error_text, flips_text, p_text, score_text, spread_text
from ktbench.results.accuracy import AccuracyRow, Result
from ktbench.results.answers import LOSSES
from ktbench.results.intervals import is_exact
from ktbench.results.quantities.text import DASH, NO_ENDS, number, plus_minus, rate
from ktbench.results.quantities.writing import MARK
from ktbench.results.row import Row
from ktbench.spec.record import KL, Outcome


def name_width(rows: Sequence[Row]) -> int:
    """Letters that the names of rows take in lines that align."""
    return max([16, *(len(row.shown) for row in rows)])


# What the caption of a table says once where all rows share it.
_SHARED: Mapping[str, Callable[[Row], object]] = {
    "rounds": lambda row: row.rounds,
    "depth": lambda row: row.spec.model.depth,
    "limit": lambda row: row.values.get("nearer_roof"),
}


def shared_facts(rows: Sequence[Row]) -> frozenset[str]:
    """What all timed rows have in common, of that which the lines of several need not repeat."""
    timed = [row for row in rows if row.timed]
    return frozenset(name for name, fact in _SHARED.items() if len(timed) > 1 and len({*map(fact, timed)}) == 1)


def row_line(row: Row, width: int = 16, shared: Set[str] = frozenset()) -> str:
    """The row as one line for a terminal, its name `width` letters wide, without what is `shared`."""
    name = f"{row.shown:<{width}}"
    if row.is_layer:
        name = f"{f'{row.shown} @{row.spec.tokens_per_expert:g}':<{width + 8}}"
    if row.step_s is None or row.tokens_per_s is None:
        reason = f": {row.why}" if row.why else ""
        return f"{name} {row.outcome or 'not measured yet'}{reason}"
    mark, spread = "~" if row.outcome is Outcome.NOISY else "", plus_minus(row.step_s)
    time = f"{mark + number(row.step_s.mid * 1e3):>9} ms/{row.spec.workload.unit} {spread:>7}"
    rated = DASH if row.flops_per_s is None else rate(row.flops_per_s, row.spec.dtype)
    speed = f"{rated:>14}" if row.is_layer else f"{number(row.tokens_per_s.mid):>9} tokens/s{_of_slice(row, shared)}"
    roof = row.interval("roof_share")
    share = (
        ""
        if roof is None
        else f"{number(roof.mid * 100, 2):>5}% of {'roof' if 'limit' in shared else row.values['nearer_roof']}"
    )
    rounds = "simulated" if row.simulated else f"{row.rounds:2d} rounds"
    line = f"{name} {time}  {speed}  {_speedup_word(row):<33}  {share:<20}"
    return line.rstrip() if "rounds" in shared else f"{line}  {rounds}"


def _of_slice(row: Row, shared: Set[str]) -> str:
    """` of 4/48 layers (whole  0.456, extrapolated)`: which part of a model a speed is of, and that of all."""
    model, whole = row.spec.model, row.whole_tokens_per_s
    if not model.is_slice:
        return ""
    extrapolated = f" (whole {number(whole.mid):>6}, extrapolated)" if whole else ""
    return extrapolated if "depth" in shared else f" of {model.shape.layers}/{model.full_layers} layers{extrapolated}"


def accuracy_line(row: AccuracyRow, width: int = 16) -> str:
    """Score, questions, change, flips, verdict, KL and length of answers; its name is `width` letters wide."""
    name = f"{row.row.shown:<{width}}"
    if row.why:
        return f"{name} {row.outcome or 'not evaluated'}: {row.why}"
    result = row.result()
    scored = _scored(result, is_baseline=row.is_baseline) if result and result.score else ()
    return "  ".join([name, *scored, *_measured(row)])


def _scored(result: Result, *, is_baseline: bool) -> Iterator[str]:
    yield f"{score_text(result.score):>11} %"
    yield f"{result.graded:>6,} of {result.questions:,} graded"
    yield f"{'the baseline' if is_baseline else _changed(result):<66}"
    if result.kl and not is_baseline:
        yield f"KL {error_text(result.kl)} nats"
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
            moved = f" ({change_text(one.change)} %)" if one.change else ""
            yield f"perplexity {spread_text(one.value)}{moved}"
        elif not row.is_baseline:
            kl = one.metric == KL
            yield f"KL {error_text(one.value)} nats" if kl else f"top-1 {error_text(one.value, 100)} %"


def _speedup_word(row: Row) -> str:
    if row.is_baseline:
        return "the baseline"
    if row.speedup is None:
        return "no speed-up"
    found = row.speedup
    ends = f" [{found.low:.3f}, {found.high:.3f}]" if found.has_ends else "" if is_exact(found) else f" {NO_ENDS}"
    return f"{found.mid:.3f}x{MARK if row.unproven else ''}{ends} {row.verdict}"
