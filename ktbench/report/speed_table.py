"""The table of the speeds of cells: its columns, and why cells of it are empty."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ktbench.report.conditions import MARK, UNPROVEN, conditions_of, headline, kl_text, top1_text
from ktbench.report.equal_cells import equal_cells_grid
from ktbench.report.health import trial_warnings
from ktbench.report.methods import figure_caption, methods_of
from ktbench.report.serving_columns import serving_columns
from ktbench.report.table import Column, Table, build_table, notes_of, setting_columns
from ktbench.report.text import extremes
from ktbench.results import Run
from ktbench.results.formats import experts_bytes, stored_bits
from ktbench.results.intervals import Interval
from ktbench.results.quantities.text import DASH, dashed, in_gib, interval, number, percent, rate, ratio, unit_of
from ktbench.results.row import Row, comparable, falls_of, groups_of, place
from ktbench.results.run import the_part
from ktbench.results.settings import TOKENS, varying, without_precision
from ktbench.results.usage import PartTimes, RoleShares, are_alike
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.weights import BLOCK, BLOCK_BYTES, Precision

AS_SPEEDUP = "= speed-up"  # the row without the last feature is the baseline
_UNSTEADY = "in every turn the cores were moved or the two roofs disagreed: the share of the roof is a rough one"
# Missing for reasons of the machine: the caption gives them once for all rows.
_IN_CAPTION = ("energy", "peak")
# Of no cell that served requests; how these are checked is said with the methods.
_NOT_SERVING = ("read_bytes_per_s", "flops_per_s", "roof", "error")

RowColumn = Column[Row]


def table_of(run: Run, rows: Sequence[Row]) -> Table:
    """The table of `rows`, which are those of `run`, a run of one part."""
    settings = varying([group[0].settings for group in groups_of(rows)])
    arms, controls = ([row for row in rows if row.role == role] for role in ("arm", "control"))
    return build_table(
        run,
        columns(settings, rows, sized=the_part(run).figure == "frontier"),
        arms,
        controls=controls,
        conditions=conditions_of(run, rows),
        methods=methods_of(run, rows),
        notes=(
            *_noisy_notes(rows, settings),
            *_notes_on(rows, settings, _reasons),
            *format_notes(rows),
            *notes_of((place(row, settings), _fall(row, best)) for row, best in falls_of(rows)),
            *trial_warnings(rows, lambda row: place(row, settings)),
        ),
        remarks=_notes_on(rows, settings, lambda row: row.remarks),
        grids=equal_cells_grid(rows),
        headline=headline(run, rows),
        figure_caption=figure_caption(run, rows),
        commands=tuple((place(row, settings), row.command) for row in arms),
    )


def columns(settings: Sequence[str], rows: Sequence[Row], *, sized: bool = False) -> tuple[RowColumn, ...]:
    """All columns of a table of `rows`, with one for each setting that varies, and `sized` what their weights take."""
    return (
        Column("arm", lambda row: row.shown, numeric=False, key=True),
        *setting_columns(settings, lambda row: row.settings, key=True),
        _outcome(rows),
        *(_SIZES if sized else ()),
        *_speed(rows),
        *_PARTS,
        *_ROLES,
        *_ENERGY,
        *_peak(rows),
        Column(
            f"evidence (counter/{'block' if rows[0].is_serving else 'step'})",
            lambda row: row.evidence or DASH,
            numeric=False,
        ),
        Column("error (relative)", lambda row: dashed(row.error, "{:.1e}".format)),
        *_ANSWERS,
        Column("rounds", lambda row: _count(row, row.rounds), movable=True),
        Column("samples", lambda row: _count(row, row.samples), movable=True),
        Column("provenance", lambda row: row.provenance or DASH, movable=True, numeric=False),
    )


def _outcome(rows: Sequence[Row]) -> RowColumn:
    """Where all is well a sentence says so; what is not stands in the table, also in the short one of a paper."""
    fine = all(row.outcome is Outcome.OK for row in rows)
    return Column("outcome", lambda row: str(row.outcome or "not measured"), movable=fine, numeric=False, key=True)


def _speed(rows: Sequence[Row]) -> tuple[RowColumn, ...]:
    if rows[0].is_serving:
        return serving_columns(_milliseconds, _COMPARED, _of_slice(rows))
    return _layer_speed(rows) if rows[0].is_layer else _model_speed(rows)


def _model_speed(rows: Sequence[Row]) -> tuple[RowColumn, ...]:
    return (
        Column("time (ms/step)", _milliseconds, key=True),
        Column(f"speed{_of_slice(rows)} (tokens/s)", lambda row: dashed(row.tokens_per_s, interval), key=True),
        Column("whole model, extrapolated (tokens/s)", lambda row: dashed(row.whole_tokens_per_s, interval)),
        *_COMPARED,
        _READ,
        _arithmetic(rows),
        Column("of roof (%)", lambda row: dashed(row.roof, lambda r: number(r.share.mid * 100, 2)), key=True),
        _LIMIT,
    )


def _of_slice(rows: Sequence[Row]) -> str:
    """` of 4 of 48 layers`, or that some rows are of slices; empty where all are of whole models."""
    slices = {row.spec.model.depth for row in rows if row.spec.model.is_slice}
    alike = len(slices) == 1 and all(row.spec.model.is_slice for row in rows)
    return f" of {next(iter(slices))}" if alike else " of slices and whole models" if slices else ""


def _layer_speed(rows: Sequence[Row]) -> tuple[RowColumn, ...]:
    """The arithmetic of a kernel comes first; tokens per second of a single layer mean nothing."""
    return (
        Column("time (ms/layer)", _milliseconds, key=True),
        _arithmetic(rows),
        _READ,
        Column("of roof (%)", lambda row: dashed(row.roof, lambda r: percent(r.share)), key=True),
        _LIMIT,
        *_COMPARED,
    )


def _milliseconds(row: Row) -> str:
    mark = "~" if row.outcome is Outcome.NOISY else ""
    return dashed(row.step_s, lambda step_s: f"{mark}{interval(step_s, 1e3)}")


def _arithmetic(rows: Sequence[Row]) -> RowColumn:
    """Integer operations are no FLOPS: where a table has both each cell names its unit."""
    units = sorted({unit_of(row.spec.dtype) for row in rows})
    if len(units) == 1:
        return Column(f"arithmetic ({units[0]})", lambda row: _scaled(row.flops_per_s, 1e-12))
    return Column("arithmetic (TFLOPS, TOPS)", lambda row: dashed(row.flops_per_s, lambda f: rate(f, row.spec.dtype)))


def _scaled(value: float | None, scale: float, digits: int = 3) -> str:
    return dashed(value, lambda value: number(value * scale, digits))


def _speedup(row: Row) -> str:
    mark = MARK if row.unproven else ""
    return f"1{mark}" if row.is_baseline and row.timed else dashed(row.speedup, lambda found: f"{ratio(found)}{mark}")


def _verdict(row: Row) -> str:
    if row.is_baseline:
        return "baseline" if row.timed else DASH
    return dashed(row.speedup, lambda _: str(row.verdict))


def _gain(row: Row) -> str:
    gain = row.gain
    if gain is not None and gain.over == row.baseline:
        return AS_SPEEDUP
    return dashed(gain, lambda gain: f"{ratio(gain.ratio)} over {gain.over}, {gain.verdict}")


def _busy(share: Callable[[RoleShares], Interval | None]) -> Callable[[Row], str]:
    return lambda row: dashed(None if row.roles is None else share(row.roles), lambda found: f"{100 * found.mid:.0f}")


def _part(seconds: Callable[[PartTimes], Interval]) -> Callable[[Row], str]:
    return lambda row: dashed(row.parts, lambda parts: interval(seconds(parts), 1e3))


def _peak(rows: Sequence[Row]) -> tuple[RowColumn, ...]:
    """A column where peaks differ; else the caption gives the one there is."""
    peaks = [row.peak for row in rows if row.peak]
    if not peaks or are_alike(peaks):
        return ()
    return (Column("peak memory (GiB)", lambda row: dashed(row.peak, lambda p: in_gib(p.process_bytes))),)


def _limit(row: Row) -> str:
    if row.roof is None:
        return DASH
    return "read" if row.roof.limit == "read" else f"arithmetic, {row.roof.peak_isa} {row.roof.peak_dtype}"


def _count(row: Row, value: int) -> str:
    return str(value) if value and not row.simulated else DASH


_SIZES = (
    RowColumn("experts (GiB)", lambda row: number(experts_bytes(row) / 2**30, 3), key=True),
    RowColumn("bits a weight", lambda row: number(stored_bits(row), 3), key=True),
)
_READ = RowColumn("weights read (GB/s)", lambda row: _scaled(row.read_bytes_per_s, 1e-9))
_LIMIT = RowColumn("nearer roof", _limit, movable=True, numeric=False)
_ROLES = (
    RowColumn("host busy (%)", _busy(lambda roles: roles.host_busy)),
    RowColumn("device busy (%)", _busy(lambda roles: roles.device_busy)),
    RowColumn("overlap (%)", _busy(lambda roles: roles.overlap)),
)
_PARTS = (
    RowColumn("forward (ms/step)", _part(lambda parts: parts.forward_s), key=True),
    RowColumn("backward (ms/step)", _part(lambda parts: parts.backward_s), key=True),
    RowColumn("optimiser (ms/step)", _part(lambda parts: parts.optimiser_s)),
)
_ENERGY = (
    RowColumn(
        "energy (J/token)", lambda row: dashed(row.energy, lambda energy: interval(energy.joules_per_token)), key=True
    ),
    RowColumn("power (W)", lambda row: dashed(row.energy, lambda energy: number(energy.watts.mid, 3))),
)
_ANSWERS = (
    RowColumn("top-1 agreement (%)", top1_text, key=True),
    RowColumn("KL (nats)", kl_text, key=True),
)
_COMPARED = (
    RowColumn("speed-up (×)", _speedup, key=True),
    RowColumn("verdict", _verdict, numeric=False, key=True),
    RowColumn("comparable rounds", lambda row: dashed(comparable(row), str), movable=True, key=True),
    RowColumn("gain of the last feature (×)", _gain, numeric=False, blanks=(DASH, AS_SPEEDUP)),
)


def _reasons(row: Row) -> list[str]:
    """Why cells of the row are empty or in doubt, each reason once."""
    noisy = row.outcome is Outcome.NOISY  # one note for all cells
    ending = [f"{row.outcome or 'not measured'}: {row.why}"] if row.why and not noisy else []
    empty = [why for name, why in row.missing.items() if _needs_reason(row, name)]
    unsteady = [_UNSTEADY] if row.roof and not row.roof.steady else []
    unproven = [UNPROVEN] if row.unproven else []
    return list(dict.fromkeys(ending + empty + unsteady + unproven))


_HALF_WIDTH = re.compile(r"±([\d.]+)%")


def _noisy_notes(rows: Sequence[Row], settings: Sequence[str]) -> tuple[str, ...]:
    """One note on all NOISY cells with an interval, least to most of their half-widths, and those on too few rounds."""
    noisy = [row for row in rows if row.outcome is Outcome.NOISY]
    widths = [float(found[1]) for row in noisy if (found := _HALF_WIDTH.search(row.why))]

    def words(row: Row) -> tuple[str, ...]:
        if row.outcome is not Outcome.NOISY:
            return ()
        ends = " to ".join(f"±{end:.1f}%" for end in extremes(widths))
        return (f"{Outcome.NOISY}: {_HALF_WIDTH.sub(ends, row.why, count=1)}",)

    return _notes_on(rows, settings, words)


def _notes_on(
    rows: Sequence[Row], settings: Sequence[str], sentences: Callable[[Row], Iterable[str]]
) -> tuple[str, ...]:
    """`base; +v, batch=2 — why`: a note for each sentence, by its name alone an arm of which it holds for all rows."""
    held: dict[str, list[Row]] = {}
    for row in rows:
        for sentence in sentences(row):
            held.setdefault(sentence, []).append(row)
    of_arm = Counter(row.shown for row in rows)
    return tuple(f"{_names(found, of_arm, settings)} — {sentence}" for sentence, found in held.items())


def _names(held: Sequence[Row], of_arm: Counter[str], settings: Sequence[str]) -> str:
    if 1 < len(held) == of_arm.total():
        return "all rows"
    mine = Counter(row.shown for row in held)
    names = (row.shown if mine[row.shown] == of_arm[row.shown] else place(row, settings) for row in held)
    return "; ".join(dict.fromkeys(names))


def _needs_reason(row: Row, name: str) -> bool:
    said = (*_IN_CAPTION, *(_NOT_SERVING if row.is_serving else ()))
    return row.timed and name not in said and not (name == "speedup" and row.is_baseline)


def _fall(row: Row, best: Row) -> str:
    share = (row.flops_per_s or 0.0) / (best.flops_per_s or 1.0)
    return f"throughput falls to {100 * share:.0f} % of that of {best.settings[TOKENS]} tokens per expert"


def format_notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """`llama.cpp — runs int8 as Q8_0, 8.5 bits a weight`: once for each peer and precision that was timed."""
    found = dict.fromkeys(note for row in rows if row.timed and row.role == "arm" for note in _notes(row))
    return tuple(found)


def _notes(row: Row) -> Iterator[str]:
    if row.spec.system == OURS:
        return
    types = peer_of(row.spec.system).types
    for precision in _precisions(row.spec):
        held = types.get(precision, precision)
        if held.lower() != precision:
            nbytes = next((nbytes for name, nbytes in BLOCK_BYTES.items() if name == held.lower()), None)
            bits = "" if nbytes is None else f", {8 * nbytes / BLOCK:g} bits a weight"
            yield f"{without_precision(row.label)} — runs {precision} as {held}{bits}"


def _precisions(spec: RunSpec) -> tuple[Precision, ...]:
    """Those of the experts and, but for a layer alone, of the linear layers."""
    layer = spec.workload.phase == "layer"
    return (spec.precision,) if layer else (spec.precision, spec.device_precision)
