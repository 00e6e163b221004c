"""How the machine behaved during a run, in sentences: its noise, its roofs, where its cores were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ktbench.report.text import number, ratio, unit_of
from ktbench.results.row import Row, measured
from ktbench.results.speedups import Verdict
from ktbench.results.usage import MAX_DISAGREEMENT, Spread, peak_spreads, read_spread
from ktbench.spec.placement import PLACEMENTS
from ktbench.spec.record import Record


def controls_sentence(rows: Sequence[Row]) -> str:
    """What equal cells differ by: the one control, or the spread of all; empty where nothing was measured."""
    if not measured(rows):
        return ""
    controls = [row for row in rows if row.role == "control"]
    found = [row.speedup for row in controls if row.speedup]
    if not controls:
        return "No control: nothing shows what noise alone does."
    opening = f"Control ({controls[0].baseline} against itself)"
    if not found:
        return f"{opening}: {controls[0].missing['speedup']}."
    moved = any(row.verdict in (Verdict.FASTER, Verdict.SLOWER) for row in controls)
    distrust = "; distrust differences of this size" if moved else ""
    if len(controls) == 1:
        return f"{opening}: {ratio(found[0])}×, {controls[0].verdict}{distrust}."
    low, high = min(interval.low for interval in found), max(interval.high for interval in found)
    count = f"{len(found)} of {len(controls)} measured"
    return f"{opening}: {count}, all intervals within [{low:.3f}, {high:.3f}]×{distrust}."


def roofs_sentence(rows: Sequence[Row]) -> str:
    """Roofs over all turns, and how many turns they could not be held against; empty where none was sampled."""
    records = _records(measured(rows))
    read = read_spread(records)
    if read is None:
        return ""
    found = peak_spreads(records)
    peaks = [f"{isa} {dtype} peak {_spread(s, 1e12)} {unit_of(dtype)}" for (isa, dtype), s in found.items()]
    left_out = sum(row.roof.left_out for row in measured(rows) if row.roof)
    without = (
        f" Shares of roofs leave out {left_out} of {_turns(records)} turns, in which the cores were moved or the read "
        f"roofs before and after differ by more than {MAX_DISAGREEMENT - 1:.0%}."
    )
    roofs = ", ".join([f"read {_spread(read, 1e9)} GB/s", *peaks])
    return f"Roofs sampled next to the turns, median (least to most): {roofs}.{without if left_out else ''}"


def placement_sentence(rows: Sequence[Row]) -> str:
    """Where the cores were in how many turns; empty where nothing tells."""
    rows = measured(rows)
    records = _records(rows)
    times = [roof.ping_pong_ns for record in records for roof in record.roofs if roof.ping_pong_ns is not None]
    counts = Counter(place for row in rows for place in row.placements.values())
    seen = [(place, counts[place]) for place in PLACEMENTS if counts[place]]
    if not seen:
        return ""
    (first, count), *others = seen
    words = [f"{first} in {count} turn{'' if count == 1 else 's'}", *(f"{place} in {n}" for place, n in others)]
    words += [f"unknown in {counts[None]}"] if counts[None] else []
    paired = "; only turns with the cores in the same place are compared" if len(words) > 1 else ""
    hops = " to ".join(dict.fromkeys(f"{ns:.0f}" for ns in (min(times), max(times))))
    return f"Cores: {', '.join(words)} ({hops} ns from core to core){paired}."


def _records(rows: Sequence[Row]) -> list[Record]:
    return [record for row in rows for record in row.records]


def _turns(records: Sequence[Record]) -> int:
    return sum(bool(record.samples_s) for record in records)


def _spread(values: Spread, scale: float) -> str:
    low, mid, high = (number(value / scale, 3) for value in (values.low, values.mid, values.high))
    return f"{mid} ({low} to {high})"
