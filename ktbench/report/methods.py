"""How the numbers of a table were made, in sentences: statistics, roofs, software."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.conditions import MARK, simulated_limits, software_sentence, unproven_sentence
from ktbench.report.health import roofs_sentence
from ktbench.report.template import sentences
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.row import Row, measured, roof_rows, shows_speeds
from ktbench.results.run import facts_of, the_part
from ktbench.results.speedups import MARGIN
from ktbench.spec.record import Outcome, Part


def figure_caption(run: Run, rows: Sequence[Row]) -> str:
    """What the figure shows, in one or two sentences."""
    part = the_part(run)
    open_ones = any(row.outcome is Outcome.NOISY for row in rows)
    mark = "A value with ~" if part.figure in ("bars", "roles") else "A ringed value"
    noisy = f" {mark} is NOISY: its interval stayed open." if open_ones else ""
    marked = f" ({MARK})" if part.figure == "bars" else ""
    control = " The control is not drawn." if any(row.role == "control" for row in rows) else ""
    simulated = "" if measured(rows) else ", simulated"
    return f"{run.header.title}{simulated}: {_shows(part, rows)}.{noisy}{unproven_sentence(rows, marked)}{control}"


def _shows(part: Part, rows: Sequence[Row]) -> str:
    whiskers = "; whiskers: interval of the median" if measured(rows) else ""
    if part.figure == "bars":
        return f"speed in tokens/s{whiskers}" if shows_speeds(rows) else _speedups(part, rows)
    if part.figure == "roles":
        interval, steps = (" with the interval of the median", "timed steps") if measured(rows) else ("", "step")
        return f"speed{interval}, and the shares of the {steps} in which each role worked"
    if part.figure == "paper":
        return "beside what was published"
    if part.figure == "depth":
        return f"speed{whiskers.replace('whiskers', 'whiskers and bands')}"
    if part.figure == "latency":
        return f"time of one layer over tokens per expert{whiskers}{_read_time(rows)}"
    return (
        f"arithmetic done over tokens per expert, a panel for each precision of the weights{whiskers}{_rooflines(rows)}"
    )


def _speedups(part: Part, rows: Sequence[Row]) -> str:
    ratios = "; whiskers: interval of the ratios formed inside rounds" if measured(rows) else ""
    return f"speed-up over {part.baseline}{ratios}; numbers on bars: {'ms a layer' if rows[0].is_layer else 'tokens/s'}"


def _read_time(rows: Sequence[Row]) -> str:
    kind, how = _roofs(rows)
    return f"; dashed: reading the weights once at the {kind} read bandwidth{how}" if kind else ""


def _rooflines(rows: Sequence[Row]) -> str:
    kind, how = _roofs(rows)
    if not kind:
        return ""
    return (
        f"; dashed: {kind} roofs{how}: arithmetic peaks, and read bandwidth times the operations that each byte of an "
        "expert's weights serves"
    )


def _roofs(rows: Sequence[Row]) -> tuple[str, str]:
    """What kind of roofs are drawn, empty where none are, and how they were sampled."""
    drawn = roof_rows(rows)
    if not drawn:
        return "", ""
    if not drawn[0].simulated:
        return drawn[0].provenance or "planned", ", sampled next to the turns, median and, in grey, least to most"
    return "described", ""


def methods_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were made, against which roofs, with which software."""
    facts, here = facts_of(run), measured(rows)
    return sentences(
        "speed_methods.txt.j2",
        measured=bool(here),
        base=the_part(run).baseline,
        confidence=f"{CONFIDENCE:.0%}",
        margin=f"{MARGIN:.0%}",
        goal=f"{run.header.measure.goal:.1%}",
        quantised=any(row.spec.precision != "bf16" for row in here),
        allowed=_allowed(here) if here else "",
        roofs=roofs_sentence(here),
        limits=simulated_limits(rows),
        software=software_sentence(facts if here else facts | {"versions": {}}),
    )


def _allowed(rows: Sequence[Row]) -> str:
    """The tolerance, or that of each precision where they differ."""
    found: dict[float, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row.spec.tolerance, {})[row.spec.precision] = None
    if len(found) == 1:
        return f"{next(iter(found)):g}"
    return " or ".join(f"{tolerance:g} ({', '.join(names)})" for tolerance, names in found.items())
