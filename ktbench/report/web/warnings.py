"""What to distrust in a run: noise, cores that moved, code that had changes, machines that were not the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.report.conditions import UNPROVEN, damage_sentence
from ktbench.report.health import machine_warnings, roof_warnings, trial_warnings
from ktbench.report.text import ratio
from ktbench.results import Run
from ktbench.results.row import Row, measured
from ktbench.results.run import environments_of
from ktbench.results.speedups import Verdict
from ktbench.spec.record import Outcome


def warnings_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the rows of a part give reason to doubt."""
    here = measured(rows)
    measured_ones = (*_of_noise(here), *_of_controls(here), *_of_trials(here), *_of_answers(here))
    return (*measured_ones, *roof_warnings(here), *trial_warnings(here, lambda row: row.shown))


def warnings_of_run(run: Run) -> tuple[str, ...]:
    """What holds for the run as a whole."""
    trials = [record for record in run.latest().values() if record.samples_s]
    codes = dict.fromkeys(record.code_id for record in trials)
    machines = dict.fromkeys(record.env_id for record in trials if record.provenance == "measured")
    dirty = any(environment.facts.get("dirty") for environment in environments_of(run))
    here = any(cell.spec.machine is None for cell in run.header.cells)
    return (
        *(["The code had changes that no commit holds."] if dirty else []),
        *([f"Trials ran {len(codes)} versions of the code: {', '.join(codes)}."] if len(codes) > 1 else []),
        *([f"Trials ran on {len(machines)} machines: {', '.join(machines)}."] if len(machines) > 1 else []),
        *(machine_warnings(run) if here else ()),
        *filter(None, [damage_sentence(run)]),
    )


def _of_noise(rows: Sequence[Row]) -> Iterator[str]:
    noisy = [row for row in rows if row.outcome is Outcome.NOISY]
    if noisy:
        names = ", ".join(dict.fromkeys(row.shown for row in noisy))
        # Of too few rounds for an interval nothing says how far times may be off.
        widths = [row.step_s.half_width for row in noisy if row.step_s and row.step_s.sound]
        spread = f", times up to ±{max(widths):.1%}" if widths else ""
        timed = sum(row.timed for row in rows)
        yield (
            f"{len(noisy)} of {timed} timed cells are NOISY ({names}): their intervals are wider than requested "
            f"for or of too few rounds{spread}."
        )


def _of_controls(rows: Sequence[Row]) -> Iterator[str]:
    controls = [row for row in rows if row.role == "control"]
    if rows and not controls:
        yield "There is no control: nothing shows what noise alone does."
    moved = [row for row in controls if row.verdict in (Verdict.FASTER, Verdict.SLOWER)]
    for row in moved[:3]:
        assert row.speedup is not None
        yield (
            f"The control, {row.baseline} against itself, came out {ratio(row.speedup)}×, {row.verdict}: "
            "differences of this size are noise."
        )
    if len(moved) > 3:
        yield f"So did {len(moved) - 3} more of {len(controls)} controls."


def _of_trials(rows: Sequence[Row]) -> Iterator[str]:
    placements = [place for row in rows for place in row.core_layouts.values()]
    if moved := sum(place == "moved" for place in placements):
        yield f"The cores were moved during {moved} of {len(placements)} trials; these are not compared."
    rough = [row.shown for row in rows if row.roof and not row.roof.steady]
    if rough:
        names = ", ".join(dict.fromkeys(rough))
        yield f"Shares of roofs are rough for {names}: the machine changed in every trial."


def _of_answers(rows: Sequence[Row]) -> Iterator[str]:
    if names := ", ".join(dict.fromkeys(row.shown for row in rows if row.unproven)):
        yield f"{names}: {UNPROVEN}."
