"""How the numbers of a table were made, in sentences: statistics, roofs, software."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.conditions import MARK, ringed_outcome, simulated_limits, software_sentence, unproven_sentence
from ktbench.report.equal_cells import equal_cells_sentence
from ktbench.report.health import roofs_sentence
from ktbench.report.template import phrase, sentences
from ktbench.report.text import names_by
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.row import Row, measured, roof_rows, shows_speeds
from ktbench.results.run import facts_of, the_part
from ktbench.results.speedups import MARGIN
from ktbench.spec.record import Outcome


def figure_caption(run: Run, rows: Sequence[Row]) -> str:
    """What the figure shows, in one or two sentences."""
    part, here, drawn = the_part(run), measured(rows), roof_rows(rows)
    figure = "bars" if part.figure == "learning" else part.figure  # of what was learned there is a document beside it
    return phrase(
        "captions.txt.j2",
        "speed",
        title=run.header.title,
        figure=figure,
        baseline=part.baseline,
        is_measured=bool(here),
        on_bars=_on_bars(rows),
        shows_speeds=shows_speeds(rows),
        roofs=(drawn[0].provenance or "planned") if drawn and not drawn[0].simulated else "described" if drawn else "",
        noisy=_noisy(rows),
        unproven=unproven_sentence(rows, f" ({MARK})" if figure == "bars" else ""),
        equal_cells=equal_cells_sentence(rows),
    )


def _on_bars(rows: Sequence[Row]) -> str:
    """What the numbers on bars are."""
    if rows[0].is_layer:
        return "ms a layer"
    return "ms to the first token" if any(row.is_wait for row in rows) else "tokens/s"


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
        block_rounds=run.header.measure.block_rounds if run.header.measure.reloads else 0,
        serving=rows[0].spec.workload.stream,
        quantised=any(row.spec.precision != "bf16" for row in here),
        allowed=_allowed(here) if here else "",
        compared=_compared(here),
        roofs=roofs_sentence(here),
        limits=simulated_limits(rows),
        software=software_sentence(facts if here else facts | {"versions": {}}),
    )


def _allowed(rows: Sequence[Row]) -> str:
    """The tolerance, or that of each precision where they differ."""
    found = names_by((row.spec.precision, row.spec.tolerance) for row in rows)
    return " or ".join(
        f"{one:g}" + (f" ({', '.join(names)})" if len(found) > 1 else "") for one, names in found.items()
    )


def _compared(rows: Sequence[Row]) -> str:
    """What was compared with float32, by row where rows differ in it; empty where nothing was."""
    found = names_by((row.shown, str(row.compared)) for row in rows if row.compared is not None)
    return "; ".join(one + (f" ({', '.join(names)})" if len(found) > 1 else "") for one, names in found.items())


def _noisy(rows: Sequence[Row]) -> str:
    """How many values are NOISY, in a word; empty where none is."""
    ringed = ringed_outcome(rows)
    if ringed is None:
        return "all" if any(row.outcome is Outcome.NOISY for row in rows) else ""
    return "some" if ringed is Outcome.NOISY else "most"
