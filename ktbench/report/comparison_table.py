"""A comparison of two runs as Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from ktbench.files import NotWritten, write_whole
from ktbench.report.conditions import machine_sentence
from ktbench.report.data import csv_of, json_of
from ktbench.report.health import controls_sentence
from ktbench.report.markdown import grid
from ktbench.report.table import Column, cells_of, notes_of
from ktbench.report.template import render, sentences
from ktbench.report.text import change_text, counted, extremes, flips_text, p_text
from ktbench.results import Run
from ktbench.results.between_runs import RunSpeedup, are_of_different_machines, software_changes
from ktbench.results.comparison import ComparedAnswers, ComparedCell, Comparison
from ktbench.results.intervals import is_exact
from ktbench.results.quantities.columns import ends_of
from ktbench.results.quantities.table import QUANTITIES
from ktbench.results.quantities.text import DASH, dashed, interval, ratio
from ktbench.results.row import Row, measured
from ktbench.results.run import each_machine, facts_of
from ktbench.results.scores import Change
from ktbench.results.speedups import Verdict
from ktbench.spec.errors import RequestError
from ktbench.spec.wire import to_plain

T = TypeVar("T")


def conditions(comparison: Comparison) -> tuple[str, ...]:
    """What A and B are, how their cells were compared, on what."""
    runs = (comparison.before, comparison.after)
    here = any(measured([cell.before]) for cell in comparison.cells)
    return sentences(
        "comparison.txt.j2",
        "conditions",
        runs=[(run.folder, run.header, facts_of(run)) for run in runs],
        tolerance=comparison.tolerance,
        methods={cell.held.method for cell in comparison.cells if cell.held and cell.held.speedup},
        machines=dict.fromkeys(machine_sentence(facts) for run in runs if here for facts in each_machine(run)),
    )


def warnings(comparison: Comparison) -> tuple[str, ...]:
    """Changes of the machine and the software between the runs, and what noise alone did in either."""
    before, after = comparison.before, comparison.after
    return sentences(
        "comparison.txt.j2",
        "warnings",
        moved=list(_machine_moved(comparison)),
        noise={"A": _noise(comparison.before_rows), "B": _noise(comparison.after_rows)},
        software=list(software_changes(before, after)),
        is_elsewhere=are_of_different_machines(before, after),
        same_code=after.header.code_id if before.header.code_id == after.header.code_id else "",
        is_same_run=before.records == after.records,
    )


def summary(comparison: Comparison) -> str:
    """`1 faster, 0 slower, 3 same, 1 unsure of 5 cells timed in both`."""
    counts = comparison.verdicts
    order = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNSURE)
    return f"{', '.join(f'{counts[one]} {one}' for one in order)} of {counted(counts.total(), 'cell')} timed in both"


def _machine_moved(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Where the roofs next to the trials differ by more than a comparison tolerates."""
    found = [cell.roof for cell in comparison.cells if cell.roof and not cell.after.simulated]
    beyond = [roof for roof in found if roof.is_beyond(comparison.tolerance)]
    for limit, word in product(("read", "arithmetic"), ("slower", "faster")):
        ratios = [one.ratio for one in beyond if one.limit == limit and (one.ratio < 1) == (word == "slower")]
        if ratios:
            ends = dict.fromkeys(f"{ratio:.2f}×" for ratio in extremes(ratios))
            yield {"limit": limit, "word": word, "cells": len(ratios), "all": len(found), "ends": ends}


def _noise(rows: Sequence[Row]) -> Iterable[str]:
    """What the control of each part showed."""
    parts = dict.fromkeys(row.part for row in rows)
    found = (controls_sentence([row for row in rows if row.part == part]) for part in parts)
    return dict.fromkeys(filter(None, found))


def comparison_csv(comparison: Comparison) -> str:
    """One line for each cell of either run, `side` names it; times in seconds, empty where a value is missing."""
    blank = dict.fromkeys(_FIELDS)
    lines = [_cell(cell) for cell in comparison.cells]
    for side, names in (("A", comparison.only_before), ("B", comparison.only_after)):
        lines += [blank | {"cell": name, "side": side, "why": f"only in {side}"} for name in names]
    return csv_of(lines)


def comparison_json(comparison: Comparison) -> str:
    """Both runs, what was found for each cell, the answers, and what to doubt."""
    content = {
        "a": _run(comparison.before),
        "b": _run(comparison.after),
        "tolerance": comparison.tolerance,
        "recorded_in_turns": comparison.in_turns,
        "verdicts": {str(verdict): count for verdict, count in sorted(comparison.verdicts.items())},
        "cells": [_cell(cell) for cell in comparison.cells],
        "lost": dict(comparison.lost),
        "unjudged": dict(comparison.unjudged),
        "only_in_a": comparison.only_before,
        "only_in_b": comparison.only_after,
        "answers": [to_plain(one) for one in comparison.answers],
        "warnings": warnings(comparison),
        "conditions": conditions(comparison),
    }
    return json_of(content)


_FIELDS = (
    *("cell", "side", "role", "spec_id", "provenance"),
    *(f"{side}_{what}" for side in "ab" for what in ("outcome", "step_s", "turns")),
    *("speedup_low", "speedup", "speedup_high", "coverage", "method", "verdict"),
    *("roof_ratio", "roof_limit", "why"),
)


def _cell(cell: ComparedCell) -> dict[str, Any]:
    held, roof = cell.held, cell.roof
    speedup = held.speedup if held else None
    trials = held.trials if held else (None, None)
    return {
        "cell": cell.name,
        "side": "both",
        "role": cell.after.role,
        "spec_id": cell.after.spec_id,
        "provenance": cell.after.provenance or cell.before.provenance,
        **_side("a", cell.before, trials[0]),
        **_side("b", cell.after, trials[1]),
        **ends_of("speedup", speedup),
        "coverage": None if speedup is None or is_exact(speedup) else speedup.coverage,
        "method": held and held.method,
        "verdict": cell.verdict if held else None,
        "roof_ratio": roof and roof.ratio,
        "roof_limit": roof and roof.limit,
        "why": cell.why,
    }


def _side(name: str, row: Row, trials: int | None) -> dict[str, Any]:
    measured = {one.name: row.interval(one.name) for one in QUANTITIES if one.trial and one.has_ends}
    return {
        f"{name}_outcome": row.outcome,
        f"{name}_step_s": None,
        **{f"{name}_{what}": value.mid for what, value in measured.items() if value},
        f"{name}_turns": trials,
    }


def _run(run: Run) -> dict[str, Any]:
    """What identifies a run, with what is known of its machine and software."""
    header = run.header
    ids = {"run": header.run, "created": header.created, "code_id": header.code_id, "env_id": header.env_id}
    return {**ids, "command": header.command, "environments": [to_plain(one) for one in run.environments]}


def comparison_markdown(comparison: Comparison) -> str:
    """Title, cells, controls, answers, what stands in one run alone, reasons, warnings and conditions."""
    arms = [cell for cell in comparison.cells if not cell.is_control]
    controls = [cell for cell in comparison.cells if cell.is_control]
    is_shown = any(cell.before.records or cell.after.records for cell in arms)
    text = render(
        "comparison.md.j2",
        before=comparison.before.folder.name,
        after=comparison.after.folder.name,
        lost=notes_of(comparison.lost.items()),
        cells=_grid(_cell_columns(arms), arms) if is_shown else (),
        summary=summary(comparison),
        controls=_grid(_cell_columns(controls), controls),
        answers=_grid(_ANSWERS, comparison.answers),
        only_before=comparison.only_before,
        only_after=comparison.only_after,
        notes=notes_of(_reasons(comparison)),
        warnings=warnings(comparison),
        conditions=conditions(comparison),
    )
    return f"{text.rstrip()}\n"


def _grid(columns: Sequence[Column[T]], lines: Sequence[T]) -> list[str]:
    """Nothing without lines."""
    headings = [column.heading for column in columns]
    return grid([headings, *cells_of(columns, lines)], [column.numeric for column in columns]) if lines else []


def _reasons(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield from ((cell.name, cell.why) for cell in comparison.cells if cell.before.records or cell.after.records)
    yield from ((f"{one.name}, {one.subject}", one.why) for one in comparison.answers)


def _time(row: Row) -> str:
    """Without a time the outcome stands in its place."""
    return interval(row.step_s, 1e3) if row.step_s else str(row.outcome or "not measured")


def _provenance(cell: ComparedCell) -> str:
    return " / ".join(dict.fromkeys(row.provenance for row in (cell.before, cell.after) if row.provenance)) or DASH


def _of_held(write: Callable[[ComparedCell, RunSpeedup], str]) -> Callable[[ComparedCell], str]:
    return lambda cell: dashed(cell.held, lambda held: write(cell, held))


def _of_change(write: Callable[[Change], str]) -> Callable[[ComparedAnswers], str]:
    return lambda one: dashed(one.change, write)


def _cell_columns(cells: Sequence[ComparedCell]) -> tuple[Column[ComparedCell], ...]:
    """Of cells that served requests times are of an output token."""
    unit = "token" if any(cell.after.is_serving or cell.before.is_serving for cell in cells) else "step"
    return (
        Column("cell", lambda cell: cell.name, numeric=False),
        Column(f"A (ms/{unit})", lambda cell: _time(cell.before)),
        Column(f"B (ms/{unit})", lambda cell: _time(cell.after)),
        Column("B over A", _of_held(lambda _, held: dashed(held.speedup, ratio))),
        Column(
            "verdict",
            _of_held(lambda cell, _: f"{cell.verdict}{' (machine too)' if cell.machine_too else ''}"),
            numeric=False,
        ),
        Column("roof, B over A", lambda cell: dashed(cell.roof, lambda roof: f"{roof.ratio:.2f} ({roof.limit})")),
        Column("trials A, B", _of_held(lambda _, held: f"{held.trials[0]}, {held.trials[1]}")),
        Column("provenance", _provenance, numeric=False),
    )


_ANSWERS: tuple[Column[ComparedAnswers], ...] = (
    Column("cell", lambda one: one.name, numeric=False),
    Column("subject", lambda one: one.subject, numeric=False),
    Column("questions", lambda one: str(one.questions)),
    Column("A (%)", _of_change(lambda change: f"{100 * change.base:.1f}")),
    Column("B - A (points)", _of_change(lambda change: change_text(change.difference))),
    Column("flips", _of_change(flips_text)),
    Column("p", _of_change(p_text)),
    Column("verdict", _of_change(lambda change: str(change.verdict)), numeric=False),
)


def write_comparison(comparison: Comparison) -> list[Path]:
    """Write `compare-<A>.md`, `.csv` and `.json` into the report folder of B and return their paths.

    Of curves of throughput the figure as well, `compare-<A>.pdf`, `.svg` and `.png`. Raises RequestError where nothing
    can be written there.
    """
    folder, name = comparison.after.folder / "report", f"compare-{comparison.before.folder.name}"
    texts = {
        folder / f"{name}.md": comparison_markdown(comparison),
        folder / f"{name}.csv": comparison_csv(comparison),
        folder / f"{name}.json": comparison_json(comparison),
    }
    try:
        written = [write_whole(path, text) for path, text in texts.items()]
        return [*written, *_write_figure(comparison, folder, name)]
    except NotWritten as error:
        raise RequestError(f"compare: nothing can be written to {folder}: {error.path.name}: {error.reason}") from None


def _write_figure(comparison: Comparison, folder: Path, name: str) -> list[Path]:
    figures = {part.figure for run in (comparison.before, comparison.after) for part in run.header.parts}
    if figures != {"throughput"}:
        return []
    # matplotlib takes a second to load: only for those who want the figure.
    from ktbench.report.figures.draw import draw_change
    from ktbench.report.figures.output import save

    caption = [
        f"{comparison.after.header.title}. Grey: A; the others: B, {summary(comparison)}.",
        *conditions(comparison),
    ]
    return save(draw_change(comparison.before_rows, comparison.after_rows, caption), folder, name)
