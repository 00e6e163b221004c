"""A comparison in words: what was compared and how, what to doubt, what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.conduct import controls_sentence
from ktbench.report.machine import machine_sentence
from ktbench.results import Run
from ktbench.results.between_runs import Method, are_of_different_machines, software_changes
from ktbench.results.comparison import Comparison
from ktbench.results.row import Row, measured
from ktbench.results.run import each_machine, facts_of
from ktbench.results.speedups import Verdict

_METHODS: dict[Method, str] = {
    "paired": "The rounds of A and B were measured in turns: ratios are formed inside rounds, so that a drift of the "
    "machine falls on both; their interval is that of the median between two order statistics.",
    "unpaired": "A and B were measured one after the other: ratios are the shift between all their turns (Hodges and "
    "Lehmann, with the exact interval of Mann and Whitney). What the machine did between the two runs is not in that "
    "interval; the column of the roof shows it.",
    "identical": "A and B hold the very same turns: nothing is estimated, their ratio is 1.",
    "simulated": "Simulated steps are the same every time: their ratio has no interval.",
}


def conditions(comparison: Comparison) -> Iterator[str]:
    """What A and B are, how their cells were compared, on what."""
    yield f"A: {_origin(comparison.before)}."
    yield f"B: {_origin(comparison.after)}."
    tolerance = comparison.tolerance
    yield (
        f"Above 1 B is faster. Same: the whole interval lies within {1 / (1 + tolerance):.3f} to {1 + tolerance:.3f}; "
        "faster or slower: it lies beyond that and beyond what equal cells differed by in either run; else unsure."
    )
    used = {cell.held.method for cell in comparison.cells if cell.held and cell.held.speedup}
    yield from (sentence for method, sentence in _METHODS.items() if method in used)
    runs = (comparison.before, comparison.after)
    if any(measured([cell.before]) for cell in comparison.cells):
        yield from dict.fromkeys(machine_sentence(facts) for run in runs for facts in each_machine(run))


def warnings(comparison: Comparison) -> Iterator[str]:
    """What the machine and the software did meanwhile, and what noise alone did in either run."""
    yield from _machine_moved(comparison)
    for name, rows in (("A", comparison.before_rows), ("B", comparison.after_rows)):
        yield from (f"In {name}: {said}" for said in _noise(rows))
    if changed := list(software_changes(comparison.before, comparison.after)):
        yield f"The software is not the same: {'; '.join(changed)}."
    if are_of_different_machines(comparison.before, comparison.after):
        yield "A and B are of different machines: a ratio says nothing about the code alone."
    there, here = comparison.before.header, comparison.after.header
    if there.code_id == here.code_id and comparison.before.records != comparison.after.records:
        yield f"A and B ran the same code ({here.code_id}): what differs between them is not the code."


def summary(comparison: Comparison) -> str:
    """`1 faster, 0 slower, 3 same, 1 unsure of 5 cells timed in both`."""
    counts = comparison.verdicts
    order = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNSURE)
    total = counts.total()
    cells = "cell" if total == 1 else "cells"
    return f"{', '.join(f'{counts[one]} {one}' for one in order)} of {total} {cells} timed in both"


def _origin(run: Run) -> str:
    facts, header = facts_of(run), run.header
    commit = str(facts.get("commit") or "")[:12]
    words = [
        str(run.folder),
        f"commit {commit}{' with changes' if facts.get('dirty') else ''}" if commit else "commit not known",
        f"code {header.code_id}",
        f"begun {header.created}",
    ]
    return ", ".join(words)


def _machine_moved(comparison: Comparison) -> Iterator[str]:
    """Where the roofs next to the turns differ by more than a comparison tolerates."""
    found = [cell.roof for cell in comparison.cells if cell.roof and not cell.after.simulated]
    for limit in ("read", "arithmetic"):
        ratios = [roof.ratio for roof in found if roof.limit == limit and roof.is_beyond(comparison.tolerance)]
        for word, moved in (("slower", [r for r in ratios if r < 1]), ("faster", [r for r in ratios if r > 1])):
            if moved:
                ends = " to ".join(dict.fromkeys(f"{ratio:.2f}×" for ratio in (min(moved), max(moved))))
                cells = f"{len(moved)} of {len(found)} cells"
                yield f"The machine itself was {word} in B: its {limit} roof next to {cells} is {ends} that in A."


def _noise(rows: Sequence[Row]) -> Iterator[str]:
    """What the control of each part showed."""
    parts = dict.fromkeys(row.part for row in rows)
    said = (controls_sentence([row for row in rows if row.part == part]) for part in parts)
    yield from dict.fromkeys(filter(None, said))
