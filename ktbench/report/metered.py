"""What the caption of a table says of energy and memory, with the reason where something is not known."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.health import listed
from ktbench.report.text import DASH
from ktbench.results.row import Row, groups_of, measured, place
from ktbench.results.settings import varying
from ktbench.results.usage import are_alike, most, unmetered_reason
from ktbench.spec.conduct import READ_BUFFER_BYTES, PeakMemory


def energy_sentence(rows: Sequence[Row]) -> str:
    """Which meters were added up, of which rows where they differ, and what that holds, or why there is none.

    Empty where nobody could have read any.
    """
    watched = [row for row in measured(rows) if row.timed and any(record.conduct for record in row.records)]
    if not watched:
        return ""
    sums = _sums(watched)
    why = "; ".join(dict.fromkeys(filter(None, (unmetered_reason(row.records) for row in watched))))
    if not sums:
        return f"Energy: {DASH} ({why})."
    lacking = f" Not in it: {why}." if why else ""
    return (
        f"Energy: {sums}, read around the timed steps; of whole chips, neither idle power nor other programs' "
        f"subtracted.{lacking}"
    )


def _sums(rows: Sequence[Row]) -> str:
    """`package-0, gpu-0 together`; with the names of the rows of each where rows were not metered alike."""
    settings = varying([group[0].settings for group in groups_of(rows)])
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.energy:
            found.setdefault(row.energy.meters, []).append(place(row, settings))
    said = {meters: f"{', '.join(meters)}{' together' if len(meters) > 1 else ''}" for meters in found}
    if len(found) < 2:
        return "".join(said.values())
    each = " and ".join(f"{said[meters]} ({listed(names)})" for meters, names in found.items())
    return f"{each}, not to be compared with each other"


def memory_sentence(rows: Sequence[Row]) -> str:
    """Peaks of the worker processes, by node and device, and how much of them is the harness's own.

    Empty where nobody looked.
    """
    peaks = [row.peak for row in measured(rows) if row.peak]
    top = most(peaks)
    if top is None:
        return ""
    of = "of the worker during a turn" if top.of_turn else "of the worker since it began"
    low = min(peak.process_bytes for peak in peaks)
    span = in_gib(top.process_bytes) if are_alike(peaks) else f"{in_gib(low)} to {in_gib(top.process_bytes)}"
    parts = parts_text(top)
    return (
        f"Peak memory {of}: {span} GiB{f', by place at most {parts}' if parts else ''}; "
        f"{in_gib(READ_BUFFER_BYTES)} GiB of it is the buffer that the read roof is sampled from."
    )


_GIB = 2**30


def in_gib(nbytes: int) -> str:
    """`5.3`."""
    return f"{nbytes / _GIB:.1f}"


def parts_text(peak: PeakMemory) -> str:
    """`node 0 2.5 GiB, node 1 2.5 GiB, cuda:0 7.1 GiB`."""
    return ", ".join(f"{name} {in_gib(nbytes)} GiB" for name, nbytes in (peak.node_bytes | peak.device_bytes).items())
