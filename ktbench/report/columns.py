"""The columns of a table: heading with its unit, and how a row's cell reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ktbench.report.roof import RoofShare
from ktbench.report.row import Row
from ktbench.report.settings import Setting
from ktbench.report.text import DASH, interval, number, ratio
from ktbench.stats.intervals import Interval

AS_SPEEDUP = "= speed-up"  # the row without the last feature is the baseline

Write = Callable[[Row], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`movable`: where all rows say the same, the caption says it once instead. `numeric` columns align right."""

    heading: str
    write: Write
    movable: bool = False
    numeric: bool = True


def columns(settings: tuple[str, ...]) -> tuple[Column, ...]:
    """All columns, with one for each setting that varies."""
    return (
        Column(heading="arm", write=lambda row: row.label, numeric=False),
        *(Column(heading=key, write=_setting(key)) for key in settings),
        Column(heading="outcome", write=_outcome, movable=True, numeric=False),
        Column(heading="time (ms/step)", write=lambda row: _interval(row.step_s, 1e3)),
        Column(heading="speed (tokens/s)", write=lambda row: _interval(row.tokens_per_s)),
        Column(heading="speed-up (×)", write=_speedup),
        Column(heading="verdict", write=_verdict, numeric=False),
        Column(heading="gain of the last feature (×)", write=_gain, numeric=False),
        Column(heading="weights read (GB/s)", write=lambda row: _number(row.read_bytes_per_s, 1e-9)),
        Column(heading="arithmetic (TFLOPS)", write=lambda row: _number(row.flops_per_s, 1e-12)),
        Column(heading="of roof (%)", write=lambda row: _share(row.roof)),
        Column(heading="nearer roof", write=_limit, movable=True, numeric=False),
        Column(heading="evidence (counter/step)", write=lambda row: row.evidence or DASH, numeric=False),
        Column(heading="error (relative)", write=lambda row: DASH if row.error is None else f"{row.error:.1e}"),
        Column(heading="rounds", write=lambda row: _count(row.rounds), movable=True),
        Column(heading="samples", write=lambda row: _count(row.samples), movable=True),
        Column(heading="provenance", write=lambda row: row.provenance or DASH, movable=True, numeric=False),
    )


def _setting(key: str) -> Write:
    return lambda row: setting_text(row.settings[key])


def setting_text(value: Setting) -> str:
    """A setting as Hydra reads it."""
    return "null" if value is None else str(value)


def _outcome(row: Row) -> str:
    return "not measured" if row.outcome is None else str(row.outcome)


def _interval(value: Interval | None, scale: float = 1.0) -> str:
    return DASH if value is None else interval(value, scale)


def _number(value: float | None, scale: float) -> str:
    return DASH if value is None else number(value * scale, 3)


def _speedup(row: Row) -> str:
    if row.is_baseline and row.timed:
        return "1"
    return DASH if row.speedup is None else ratio(row.speedup)


def _verdict(row: Row) -> str:
    if row.is_baseline:
        return "baseline" if row.timed else DASH
    return DASH if row.speedup is None else str(row.verdict)


def _gain(row: Row) -> str:
    if row.gain is None:
        return DASH
    if row.gain.over == row.baseline:
        return AS_SPEEDUP
    return f"{ratio(row.gain.ratio)} over {row.gain.over}, {row.gain.verdict}"


def _share(roof: RoofShare | None) -> str:
    return DASH if roof is None else number(roof.share.mid * 100, 2)


def _limit(row: Row) -> str:
    if row.roof is None:
        return DASH
    return "read" if row.roof.limit == "read" else f"arithmetic, {row.roof.peak_isa}"


def _count(value: int) -> str:
    return str(value) if value else DASH
