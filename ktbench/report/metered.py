"""What the caption of a table says of energy and memory, with the reason where something is not known."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.energy import unmetered_reason
from ktbench.report.peaks import are_alike, in_gib, most, parts_text
from ktbench.report.row import Row
from ktbench.report.simulated import measured
from ktbench.report.text import DASH


def energy_sentence(rows: Sequence[Row]) -> str:
    """Which meters were added up and what that holds, or why there is none; empty where nobody could have read any."""
    watched = [row for row in measured(rows) if row.timed and any(record.conduct for record in row.records)]
    if not watched:
        return ""
    meters = dict.fromkeys(name for row in watched if row.energy for name in row.energy.meters)
    why = "; ".join(dict.fromkeys(filter(None, (unmetered_reason(row.records) for row in watched))))
    if not meters:
        return f"Energy: {DASH} ({why})."
    lacking = f" Not in it: {why}." if why else ""
    return (
        f"Energy: {', '.join(meters)} together, read around the timed steps; of whole chips, neither idle power nor "
        f"other programs' subtracted.{lacking}"
    )


def memory_sentence(rows: Sequence[Row]) -> str:
    """Peaks of the worker processes, by node and device; empty where nobody looked."""
    peaks = [row.peak for row in measured(rows) if row.peak]
    top = most(peaks)
    if top is None:
        return ""
    of = "of the worker during a turn" if top.of_turn else "of the worker since it began"
    low = min(peak.process_bytes for peak in peaks)
    span = in_gib(top.process_bytes) if are_alike(peaks) else f"{in_gib(low)} to {in_gib(top.process_bytes)}"
    parts = parts_text(top)
    return f"Peak memory {of}: {span} GiB{f', by place at most {parts}' if parts else ''}."
