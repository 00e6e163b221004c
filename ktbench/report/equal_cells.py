"""The rate of false verdicts on equal cells: as a grid below a table, a sentence, and for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ktbench.report.table import Grid
from ktbench.report.text import counted
from ktbench.results.equal_cells import FalseVerdicts, false_verdicts
from ktbench.results.row import Row


def equal_cells_grid(rows: Sequence[Row]) -> tuple[Grid, ...]:
    """Equal cells by arm: how many comparisons are called faster or slower; none where no cell has a copy."""
    found = false_verdicts(rows)
    headings = ("equal cells (A/A)", "loads behind a verdict", "comparisons", "faster or slower", "false (%)")
    lines = tuple(
        (one.arm or "all arms", str(one.loads), str(one.comparisons), str(one.called), _percent(one)) for one in found
    )
    return (Grid(title="Verdicts on equal cells", headings=headings, lines=lines),) if lines else ()


def equal_cells_sentence(rows: Sequence[Row]) -> str:
    """The machine's own rate of false verdicts, inside one load of the weights and over all; empty without copies."""
    found = false_verdicts(rows)
    whole = [one for one in found if not one.arm] or found
    said = "; ".join(f"{_over(one)} {one.called} of {one.comparisons}, {_percent(one)} %" for one in whole)
    return f"Equal cells called faster or slower: {said}." if said else ""


def equal_cells_content(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Plain content of the rates, by arm and together; shares from 0 to 1."""
    return [
        {
            "arm": one.arm,
            "loads": one.loads,
            "comparisons": one.comparisons,
            "called": one.called,
            "independent": one.independent,
            "share": one.share,
            "low": one.ends[0],
            "high": one.ends[1],
        }
        for one in false_verdicts(rows)
    ]


def _over(one: FalseVerdicts) -> str:
    return f"over {counted(one.loads, 'load')} of the weights" if one.loads > 1 else "inside one load of the weights"


def _percent(one: FalseVerdicts) -> str:
    """`8 [2, 26]`."""
    low, high = one.ends
    return f"{100 * one.share:.0f} [{100 * low:.0f}, {100 * high:.0f}]"
