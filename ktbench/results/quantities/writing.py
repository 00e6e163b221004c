"""Headings and texts of quantities that depend on more than their value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ktbench.results.quantities.quantity import Heading
from ktbench.results.quantities.text import DASH, dashed, interval, number, percent, rate, ratio, unit_of
from ktbench.results.row import Row
from ktbench.results.usage import are_alike
from ktbench.spec.record import Agreement, Outcome
from ktbench.spec.sweep import FigureKind

MARK = "†"  # beside values of rows that nothing shows to give the answers of the others
REFERENCE = "reference"
AS_SPEEDUP = "= speed-up"  # the row without the last feature is the baseline


def only_frontiers(heading: str) -> Heading[Row]:
    """A column of tables beside a frontier alone."""
    return lambda _, figure: heading if figure == "frontier" else ""


def time_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """`time (ms/step)`, of what the rows time."""
    return f"time (ms/{'layer' if rows[0].is_layer else 'output token' if rows[0].is_serving else 'step'})"


def speed_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """`speed of 4 of 48 layers (tokens/s)`; tokens per second of a single layer mean nothing."""
    what = "output" if rows[0].is_serving else "speed"
    return "" if rows[0].is_layer else f"{what}{_of_slice(rows)} (tokens/s)"


def _of_slice(rows: Sequence[Row]) -> str:
    """` of 4 of 48 layers`, or that some rows are of slices; empty where all are of whole models."""
    slices = {row.spec.model.depth for row in rows if row.spec.model.is_slice}
    alike = len(slices) == 1 and all(row.spec.model.is_slice for row in rows)
    return f" of {next(iter(slices))}" if alike else " of slices and whole models" if slices else ""


def rate_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """Integer operations are no FLOPS: a table that has both has `mixed_heading` instead."""
    units = _units(rows)
    return f"arithmetic ({units[0]})" if len(units) == 1 else ""


def mixed_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """Where a table has both, each cell names its unit."""
    units = _units(rows)
    return f"arithmetic ({', '.join(units)})" if len(units) > 1 else ""


def _units(rows: Sequence[Row]) -> list[str]:
    return sorted({unit_of(row.spec.dtype) for row in rows})


def rate_text(row: Row) -> str:
    """Operations a second with their unit."""
    return dashed(row.flops_per_s, lambda per_s: rate(per_s, row.spec.dtype))


def peak_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """A column where peaks differ; else the caption gives the one there is."""
    peaks = [row.peak for row in rows if row.peak]
    return "peak memory (GiB)" if peaks and not are_alike(peaks) else ""


def evidence_heading(rows: Sequence[Row], _: FigureKind | None) -> str:
    """Counters are per step or per block of requests."""
    return f"evidence (counter/{'block' if rows[0].is_serving else 'step'})"


def step_text(row: Row) -> str:
    """Milliseconds, marked where the row is NOISY."""
    mark = "~" if row.outcome is Outcome.NOISY else ""
    return dashed(row.step_s, lambda step_s: f"{mark}{interval(step_s, 1e3)}")


def speedup_text(row: Row) -> str:
    """That of the baseline is 1."""
    mark = MARK if row.unproven else ""
    return f"1{mark}" if row.is_baseline and row.timed else dashed(row.speedup, lambda found: f"{ratio(found)}{mark}")


def verdict_text(row: Row) -> str:
    """The baseline has none."""
    if row.is_baseline:
        return "baseline" if row.timed else DASH
    return dashed(row.speedup, lambda _: str(row.verdict))


def gain_text(row: Row) -> str:
    """The gain with the row that it is over, where that is not the baseline."""
    if row.gain is not None and row.gain.over == row.baseline:
        return AS_SPEEDUP
    return dashed(row.gain, lambda gain: f"{ratio(gain.ratio)} over {gain.over}, {gain.verdict}")


def roof_text(row: Row) -> str:
    """The share in percent, of a layer with its interval."""
    share = row.interval("roof_share")
    return dashed(share, lambda share: percent(share) if row.is_layer else number(share.mid * 100, 2))


def limit_text(row: Row) -> str:
    """`read`; `arithmetic, avx512 bf16`."""
    limit: str = row.values.get("nearer_roof", DASH)
    return f"{limit}, {row.values['peak_isa']} {row.values['peak_dtype']}" if limit == "arithmetic" else limit


def top1_text(row: Row) -> str:
    """The share of positions in percent, `reference` for the row that others are held against."""
    return _agreement(row, lambda found: f"{100 * found.top1:.1f}")


def kl_text(row: Row) -> str:
    """The divergence in nats, `reference` for the row that others are held against."""
    return _agreement(row, lambda found: _nats(found.kl_nats))


def _agreement(row: Row, write: Callable[[Agreement], str]) -> str:
    return dashed(row.agreement, lambda found: write(found) if found.against else REFERENCE)


def _nats(value: float) -> str:
    return f"{value:.1e}" if 0 < value < 1e-2 else number(value, 2)


def whole_percent(name: str) -> Callable[[Row], str]:
    """A share in whole percent, without its interval."""
    return lambda row: dashed(row.interval(name), lambda share: f"{100 * share.mid:.0f}")


def count_text(name: str) -> Callable[[Row], str]:
    """A count of what was measured."""
    return lambda row: str(getattr(row, name)) if getattr(row, name) and not row.simulated else DASH
