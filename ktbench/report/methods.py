"""How the numbers of a table were made, in sentences: statistics, roofs, software."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.conditions import ringed_outcome, simulated_limits, software_sentence, unproven_sentence
from ktbench.report.equal_cells import equal_cells_sentence
from ktbench.report.health import roofs_sentence
from ktbench.report.template import phrase, sentences
from ktbench.report.text import extremes, names_by
from ktbench.results import Run
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.quantities.text import number
from ktbench.results.quantities.writing import MARK
from ktbench.results.row import Row, groups_of, measured, roof_rows, shows_speeds
from ktbench.results.run import facts_of, the_part
from ktbench.results.settings import varying
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
        of_baseline=_of_baseline(rows),
        shows_speeds=shows_speeds(rows),
        roofs=(drawn[0].provenance or "planned") if drawn and not drawn[0].simulated else "described" if drawn else "",
        noisy=_noisy(rows),
        unproven=unproven_sentence(rows, f" ({MARK})" if figure == "bars" else ""),
        equal_cells=equal_cells_sentence(rows),
    )


def _of_baseline(rows: Sequence[Row]) -> str:
    """What a speed-up of 1 is, `5.47 tokens/s`: from the least to the most of several baselines; empty without one."""
    found = [_absolute(row) for row in rows if row.is_baseline and row.timed]
    values = dict.fromkeys(number(value, 3) for value in extremes(value for value, _ in found))
    return f"{' to '.join(values)} {found[0][1]}" if found else ""


def _absolute(row: Row) -> tuple[float, str]:
    """What the speed-up of a timed row is formed of, and its unit."""
    assert row.step_s is not None
    assert row.tokens_per_s is not None
    if row.is_layer:
        return row.step_s.mid * 1e3, "ms a layer"
    if row.is_wait:
        return row.values["ttft_p50_s"].mid * 1e3, "ms to the first token"
    return row.tokens_per_s.mid, "tokens/s"


def methods_of(run: Run, rows: Sequence[Row]) -> tuple[str, ...]:
    """How the numbers were made, against which roofs, with which software."""
    facts, here = facts_of(run), measured(rows)
    return sentences(
        "speed_methods.txt.j2",
        measured=bool(here),
        base=the_part(run).baseline,
        confidence=f"{CONFIDENCE:.0%}",
        few=any(one and not one.sound for row in here for one in (row.step_s, row.speedup)),
        unit=run.header.measure.unit,
        margin=f"{MARGIN:.0%}",
        by_precision="precision" in varying([group[0].settings for group in groups_of(rows)]),
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
