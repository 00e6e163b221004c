"""The table of the speeds of cells: its columns, and why cells of it are empty."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ktbench.report.conditions import UNPROVEN, conditions_of, headline
from ktbench.report.equal_cells import equal_cells_grid
from ktbench.report.health import trial_warnings
from ktbench.report.methods import figure_caption, methods_of
from ktbench.report.table import Column, Table, build_table, columns_for, notes_of, setting_columns
from ktbench.report.text import extremes
from ktbench.results import Run
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.table import QUANTITIES
from ktbench.results.row import Row, falls_of, groups_of, place
from ktbench.results.run import the_part
from ktbench.results.settings import TOKENS, varying, without_precision
from ktbench.spec.peers import OURS, peer_of
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.sweep import FigureKind
from ktbench.spec.weights import BLOCK, BLOCK_BYTES, Precision

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
        columns(settings, rows, the_part(run).figure),
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


_LAYER_FIRST = (
    *("experts_bytes", "stored_bits", "step_s", "flops_per_s", "arithmetic", "read_bytes_per_s"),
    *("roof_share", "nearer_roof"),
)


def columns(settings: Sequence[str], rows: Sequence[Row], figure: FigureKind) -> tuple[RowColumn, ...]:
    """All columns of a table of `rows` beside a figure, with one for each setting that varies."""
    return (
        Column("arm", lambda row: row.shown, numeric=False, key=True),
        *setting_columns(settings, lambda row: row.settings, key=True),
        _outcome(rows),
        *columns_for(_ordered(rows), rows, figure),
    )


def _ordered(rows: Sequence[Row]) -> list[Quantity[Row]]:
    """All quantities: of a layer the arithmetic of its kernel first."""
    first = _LAYER_FIRST if rows[0].is_layer else ()
    return sorted(QUANTITIES, key=lambda one: first.index(one.name) if one.name in first else len(first))


def _outcome(rows: Sequence[Row]) -> RowColumn:
    """Where all is well a sentence says so; what is not stands in the table, also in the short one of a paper."""
    fine = all(row.outcome is Outcome.OK for row in rows)
    return Column("outcome", lambda row: str(row.outcome or "not measured"), movable=fine, numeric=False, key=True)


def _reasons(row: Row) -> list[str]:
    """Why cells of the row are empty or in doubt, each reason once."""
    noisy = row.outcome is Outcome.NOISY  # one note for all cells
    ending = [f"{row.outcome or 'not measured'}: {row.why}"] if row.why and not noisy else []
    empty = [why for name, why in row.missing.items() if _needs_reason(row, name)]
    unsteady = [_UNSTEADY] if row.values.get("roofs_steady") is False else []
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
