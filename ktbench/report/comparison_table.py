"""A comparison of two runs as Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ktbench.files import NotWritten, write_whole
from ktbench.report.conditions import machine_sentence
from ktbench.report.data import csv_of, json_of
from ktbench.report.health import controls_sentence
from ktbench.report.markdown import grid
from ktbench.report.table import cells_of, columns_for, notes_of
from ktbench.report.template import render, sentences
from ktbench.report.text import change_text, counted, extremes, flips_text, p_text
from ktbench.results import Run
from ktbench.results.between_runs import RunSpeedup, are_of_different_machines, software_changes
from ktbench.results.comparison import ComparedAnswers, ComparedCell, Comparison
from ktbench.results.intervals import is_exact
from ktbench.results.quantities.columns import blank_line, cells_of_line
from ktbench.results.quantities.quantity import Quantity
from ktbench.results.quantities.table import QUANTITIES, STEP
from ktbench.results.quantities.text import dashed, interval, ratio
from ktbench.results.row import Row, measured
from ktbench.results.run import each_machine, facts_of
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
    blank = blank_line(_CELL)
    lines = [cells_of_line(_CELL, cell) for cell in comparison.cells]
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
        "cells": [cells_of_line(_CELL, cell) for cell in comparison.cells],
        "lost": dict(comparison.lost),
        "unjudged": dict(comparison.unjudged),
        "only_in_a": comparison.only_before,
        "only_in_b": comparison.only_after,
        "answers": [to_plain(one) for one in comparison.answers],
        "warnings": warnings(comparison),
        "conditions": conditions(comparison),
    }
    return json_of(content)


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
        cells=_grid(_CELL, arms) if is_shown else (),
        summary=summary(comparison),
        controls=_grid(_CELL, controls),
        answers=_grid(_ANSWERS, comparison.answers),
        only_before=comparison.only_before,
        only_after=comparison.only_after,
        notes=notes_of(_reasons(comparison)),
        warnings=warnings(comparison),
        conditions=conditions(comparison),
    )
    return f"{text.rstrip()}\n"


def _grid(quantities: Sequence[Quantity[T]], lines: Sequence[T]) -> list[str]:
    """Nothing without lines."""
    columns = columns_for(quantities, lines)
    headings = [column.heading for column in columns]
    return grid([headings, *cells_of(columns, lines)], [column.numeric for column in columns]) if lines else []


def _reasons(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield from ((cell.name, cell.why) for cell in comparison.cells if cell.before.records or cell.after.records)
    yield from ((f"{one.name}, {one.subject}", one.why) for one in comparison.answers)


def _time(row: Row) -> str:
    """Without a time the outcome stands in its place."""
    return interval(row.step_s, 1e3) if row.step_s else str(row.outcome or "not measured")


def _unit(cells: Sequence[ComparedCell]) -> str:
    """Of cells that served requests times are of an output token."""
    return "token" if any(cell.after.is_serving or cell.before.is_serving for cell in cells) else "step"


def _measured(row: Row) -> dict[str, float]:
    """Medians of what the trials of a row have, by quantity."""
    measured = {one.name: row.interval(one.name) for one in QUANTITIES if one.trial and one.has_ends}
    return {name: value.mid for name, value in measured.items() if value}


def _side(side: str, name: str, number: int) -> Iterator[Quantity[ComparedCell]]:
    """What a run has of a cell."""
    row: Callable[[ComparedCell], Row] = attrgetter(name)
    yield Quantity(f"{side}_outcome", derive=attrgetter(f"{name}.outcome"))
    yield Quantity(
        f"{side}_step_s",
        lambda cells, _: f"{side.upper()} (ms/{_unit(cells)})",
        derive=lambda cell: _measured(row(cell)).get(STEP.name),
        write=lambda cell: _time(row(cell)),
    )
    yield Quantity(f"{side}_measured", derive=lambda cell: _measured(row(cell)), csv_keys=f"{side}_{{}}")
    yield Quantity(f"{side}_turns", derive=lambda cell: cell.held and cell.held.trials[number])


def _held(value: Callable[[RunSpeedup], Any]) -> Callable[[ComparedCell], Any]:
    return lambda cell: cell.held and value(cell.held)


def _coverage(held: RunSpeedup) -> float | None:
    return None if held.speedup is None or is_exact(held.speedup) else held.speedup.coverage


def _provenances(cell: ComparedCell) -> str | None:
    return " / ".join(dict.fromkeys(filter(None, (cell.before.provenance, cell.after.provenance)))) or None


def _verdict(cell: ComparedCell) -> str:
    return dashed(cell.held, lambda _: f"{cell.verdict}{' (machine too)' if cell.machine_too else ''}")


def _roof(cell: ComparedCell) -> str:
    return dashed(cell.roof, lambda roof: f"{roof.ratio:.2f} ({roof.limit})")


# What files and tables have of a cell of both runs, and tables of answers.
_CELL: tuple[Quantity[ComparedCell], ...] = (
    Quantity("cell", "cell", derive=attrgetter("name"), is_text=True),
    Quantity("side", derive=lambda _: "both"),
    Quantity("role", derive=attrgetter("after.role")),
    Quantity("spec_id", derive=attrgetter("after.spec_id")),
    Quantity("provenance", derive=lambda cell: cell.after.provenance or cell.before.provenance),
    *_side("a", "before", 0),
    *_side("b", "after", 1),
    Quantity("speedup", "B over A", derive=_held(attrgetter("speedup")), is_interval=True, show=ratio),
    Quantity("coverage", derive=_held(_coverage)),
    Quantity("method", derive=_held(attrgetter("method"))),
    Quantity("verdict", "verdict", derive=lambda cell: cell.held and cell.verdict, write=_verdict, is_text=True),
    Quantity("roof_ratio", "roof, B over A", derive=lambda cell: cell.roof and cell.roof.ratio, write=_roof),
    Quantity("roof_limit", derive=lambda cell: cell.roof and cell.roof.limit),
    Quantity("trials", "trials A, B", derive=_held(attrgetter("trials")), show="{0[0]}, {0[1]}".format, csv=False),
    Quantity("provenances", "provenance", derive=_provenances, is_text=True, csv=False),
    Quantity("why"),
)
_ANSWERS: tuple[Quantity[ComparedAnswers], ...] = (
    Quantity("cell", "cell", derive=attrgetter("name"), is_text=True),
    Quantity("subject", "subject", is_text=True),
    Quantity("questions", "questions"),
    Quantity("change", "A (%)", show=lambda change: f"{100 * change.base:.1f}"),
    Quantity("change", "B - A (points)", show=lambda change: change_text(change.difference)),
    Quantity("change", "flips", show=flips_text),
    Quantity("change", "p", show=p_text),
    Quantity("change", "verdict", show=lambda change: str(change.verdict), is_text=True),
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
