"""The columns of a table: heading with its unit, and how a row's cell reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ktbench.report.agreement import MARK, kl_text, top1_text
from ktbench.report.metered import in_gib
from ktbench.report.text import DASH, interval, number, percent, plus_minus, rate, ratio, unit_of
from ktbench.results.intervals import Interval, is_exact
from ktbench.results.row import Row
from ktbench.results.settings import setting_text
from ktbench.results.usage import RoleShares, RoofShare, are_alike
from ktbench.spec.outcome import Outcome

AS_SPEEDUP = "= speed-up"  # the row without the last feature is the baseline

Write = Callable[[Row], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`movable`: where all rows say the same, the caption says it once instead. `numeric` columns align right.

    `key` columns are those that a table in a paper has room for.
    """

    heading: str
    write: Write
    movable: bool = False
    numeric: bool = True
    key: bool = False


def columns(settings: Sequence[str], rows: Sequence[Row]) -> tuple[Column, ...]:
    """All columns of a table of `rows`, with one for each setting that varies."""
    return (
        Column(heading="arm", write=lambda row: row.shown, numeric=False, key=True),
        *(Column(heading=key, write=_setting(key), key=True) for key in settings),
        Column(heading="outcome", write=_outcome, movable=True, numeric=False, key=True),
        *(_layer_speed(rows) if rows[0].is_layer else _model_speed(rows)),
        *_ROLES,
        *_ENERGY,
        *_peak(rows),
        Column(heading="evidence (counter/step)", write=lambda row: row.evidence or DASH, numeric=False),
        Column(heading="error (relative)", write=lambda row: DASH if row.error is None else f"{row.error:.1e}"),
        *_ANSWERS,
        Column(heading="rounds", write=lambda row: _count(row, row.rounds), movable=True),
        Column(heading="samples", write=lambda row: _count(row, row.samples), movable=True),
        Column(heading="provenance", write=lambda row: row.provenance or DASH, movable=True, numeric=False),
    )


def _model_speed(rows: Sequence[Row]) -> tuple[Column, ...]:
    return (
        Column(heading="time (ms/step)", write=lambda row: _interval(row.step_s, 1e3), key=True),
        Column(heading="speed (tokens/s)", write=lambda row: _interval(row.tokens_per_s), key=True),
        *_COMPARED,
        _READ,
        _arithmetic(rows),
        Column(heading="of roof (%)", write=lambda row: _share(row.roof), key=True),
        _LIMIT,
    )


def _layer_speed(rows: Sequence[Row]) -> tuple[Column, ...]:
    """What a kernel is judged by comes first, and tokens per second of one layer are nobody's speed."""
    return (
        Column(heading="time (ms/layer)", write=lambda row: _interval(row.step_s, 1e3), key=True),
        _arithmetic(rows),
        _READ,
        Column(heading="of roof (%)", write=lambda row: _share_interval(row.roof), key=True),
        _LIMIT,
        *_COMPARED,
    )


def _arithmetic(rows: Sequence[Row]) -> Column:
    """Integer operations are no FLOPS: where a table has both each cell says which it is."""
    units = sorted({unit_of(row.spec.dtype) for row in rows})
    if len(units) == 1:
        return Column(heading=f"arithmetic ({units[0]})", write=lambda row: _number(row.flops_per_s, 1e-12))
    return Column(heading="arithmetic (TFLOPS, TOPS)", write=_rate)


def _rate(row: Row) -> str:
    return DASH if row.flops_per_s is None else rate(row.flops_per_s, row.spec.dtype)


def _setting(key: str) -> Write:
    return lambda row: setting_text(row.settings.get(key))


def _outcome(row: Row) -> str:
    return "not measured" if row.outcome is None else str(row.outcome)


def _interval(value: Interval | None, scale: float = 1.0) -> str:
    return DASH if value is None else interval(value, scale)


def _number(value: float | None, scale: float) -> str:
    return DASH if value is None else number(value * scale, 3)


def _speedup(row: Row) -> str:
    if row.is_baseline and row.timed:
        return f"1{MARK if row.unproven else ''}"
    return DASH if row.speedup is None else f"{ratio(row.speedup)}{MARK if row.unproven else ''}"


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


def _share_interval(roof: RoofShare | None) -> str:
    return DASH if roof is None else percent(roof.share)


def _busy(share: Callable[[RoleShares], Interval]) -> Write:
    return lambda row: DASH if row.roles is None else f"{100 * share(row.roles).mid:.0f}"


def _peak(rows: Sequence[Row]) -> tuple[Column, ...]:
    """A column where peaks differ; else the caption says the one there is."""
    peaks = [row.peak for row in rows if row.peak]
    if not peaks or are_alike(peaks):
        return ()
    return (
        Column(
            heading="peak memory (GiB)", write=lambda row: DASH if row.peak is None else in_gib(row.peak.process_bytes)
        ),
    )


def _limit(row: Row) -> str:
    if row.roof is None:
        return DASH
    return "read" if row.roof.limit == "read" else f"arithmetic, {row.roof.peak_isa} {row.roof.peak_dtype}"


def _count(row: Row, value: int) -> str:
    return str(value) if value and not row.simulated else DASH


_READ = Column(heading="weights read (GB/s)", write=lambda row: _number(row.read_bytes_per_s, 1e-9))
_LIMIT = Column(heading="nearer roof", write=_limit, movable=True, numeric=False)
_ROLES = (
    Column(heading="host busy (%)", write=_busy(lambda roles: roles.host_busy)),
    Column(heading="device busy (%)", write=_busy(lambda roles: roles.device_busy)),
    Column(heading="overlap (%)", write=_busy(lambda roles: roles.overlap)),
)
_ENERGY = (
    Column(
        heading="energy (J/token)",
        write=lambda row: DASH if row.energy is None else interval(row.energy.joules_per_token),
        key=True,
    ),
    Column(heading="power (W)", write=lambda row: DASH if row.energy is None else number(row.energy.watts.mid, 3)),
)
_ANSWERS = (
    Column(heading="top-1 agreement (%)", write=top1_text, key=True),
    Column(heading="KL (nats)", write=kl_text, key=True),
)
_COMPARED = (
    Column(heading="speed-up (×)", write=_speedup, key=True),
    Column(heading="verdict", write=_verdict, numeric=False),
    Column(heading="gain of the last feature (×)", write=_gain, numeric=False),
)


def name_width(rows: Sequence[Row]) -> int:
    """Letters that the names of rows take in lines that align."""
    return max([16, *(len(row.shown) for row in rows)])


def row_line(row: Row, width: int = 16) -> str:
    """The row as one line, its name `width` letters wide, for a terminal while a sweep runs."""
    name = f"{row.shown:<{width}}"
    if row.is_layer:
        name = f"{f'{row.shown} @{row.spec.tokens_per_expert:g}':<{width + 8}}"
    if row.step_s is None or row.tokens_per_s is None:
        reason = f": {row.why}" if row.why else ""
        return f"{name} {row.outcome or 'not measured yet'}{reason}"
    mark, spread = "~" if row.outcome is Outcome.NOISY else "", plus_minus(row.step_s)
    time = f"{mark + number(row.step_s.mid * 1e3):>9} ms/{'layer' if row.is_layer else 'step'} {spread:>7}"
    speed = _rate_word(row) if row.is_layer else f"{number(row.tokens_per_s.mid):>9} tokens/s"
    share = "" if row.roof is None else f"{number(row.roof.share.mid * 100, 2):>5}% of {row.roof.limit}"
    rounds = "simulated" if row.simulated else f"{row.rounds:2d} rounds"
    return f"{name} {time}  {speed}  {_speedup_word(row):<33}  {share:<20}  {rounds}"


def _rate_word(row: Row) -> str:
    return f"{DASH if row.flops_per_s is None else rate(row.flops_per_s, row.spec.dtype):>14}"


def _speedup_word(row: Row) -> str:
    if row.is_baseline:
        return "the baseline"
    if row.speedup is None:
        return "no speed-up"
    low, mid, high = (f"{value:.3f}" for value in (row.speedup.low, row.speedup.mid, row.speedup.high))
    ends = "" if is_exact(row.speedup) else f" [{low}, {high}]"
    return f"{mid}x{MARK if row.unproven else ''}{ends} {row.verdict}"
