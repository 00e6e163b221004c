"""What the counters say a cell really ran."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ktbench.spec.record import Record

NOTHING_ASKED = "none asked, none seen"


def evidence_of(records: Sequence[Record]) -> str | None:
    """Counters of the features asked for, moved per step: `avx512_calls 32/step`. None where nothing was counted.

    What a simulation says of them is `modelled: ...`.
    """
    moved: dict[str, list[float]] = {}
    counted = False
    for record in records:
        for evidence in record.evidence:
            counted = counted or evidence.seen is not None
            if evidence.wanted and evidence.seen is not None and record.samples_s:
                moved.setdefault(evidence.counter, []).append(evidence.seen / len(record.samples_s))
    if not counted:
        return None
    said = ", ".join(f"{name} {_count(median(steps))}/step" for name, steps in moved.items()) or NOTHING_ASKED
    return f"modelled: {said}" if records[0].provenance == "simulated" else said


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
