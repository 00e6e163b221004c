"""How the numbers of a table were made, in sentences: statistics, roofs, software."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.conduct import roofs_sentence
from ktbench.report.machine import software_sentence
from ktbench.report.simulated import simulated_methods
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.row import Row, measured
from ktbench.results.run import facts_of, the_part
from ktbench.results.speedups import MARGIN


def methods_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were made, against which roofs, with which software."""
    facts, here = facts_of(run), measured(rows)
    sentences = (
        _numbers(run, here) if here else "",
        roofs_sentence(here),
        *simulated_methods(rows, the_part(run).baseline),
        software_sentence(facts if here else facts | {"versions": {}}),
    )
    return tuple(filter(None, sentences))


def _numbers(run: Run, rows: Sequence[Row]) -> str:
    measure, base = run.header.measure, the_part(run).baseline
    return (
        f"Values are medians over rounds of each round's median step, in brackets the distribution-free interval of at "
        f"least {CONFIDENCE:.0%}. "
        f"Speed-ups over {base} and gains are formed inside rounds; faster and slower: the whole interval lies beyond "
        f"±{MARGIN:.0%} and beyond the control's; same: within ±{MARGIN:.0%}. "
        f"NOISY: the interval of the speed-up (for {base}, of its control's) did not come within ±{measure.goal:.1%}. "
        f"Error: the largest relative (Frobenius) error of the experts' outputs against the float32 reference on the "
        f"same inputs{_stored(rows)}, at most {_allowed(rows)} is allowed."
    )


def _stored(rows: Sequence[Row]) -> str:
    """Where weights are quantised the error is that of the arithmetic alone."""
    quantised = any(row.spec.precision != "bf16" for row in rows)
    return " and the weights as they are stored" if quantised else ""


def _allowed(rows: Sequence[Row]) -> str:
    """The tolerance, or that of each precision where they differ."""
    found: dict[float, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row.spec.tolerance, {})[row.spec.precision] = None
    if len(found) == 1:
        return f"{next(iter(found)):g}"
    return " or ".join(f"{tolerance:g} ({', '.join(names)})" for tolerance, names in found.items())
