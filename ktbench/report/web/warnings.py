"""What to distrust in a run: noise, cores that moved, code that had changes, machines that were not the same."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.report.conditions import UNPROVEN, damage_sentence
from ktbench.report.health import machine_warnings, roof_warnings, trial_warnings
from ktbench.report.template import sentences
from ktbench.results import Run
from ktbench.results.row import Row, controls_of, groups_of, measured
from ktbench.results.run import environments_of


def warnings_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the rows of a part give reason to doubt."""
    here = measured(rows)
    layouts = [layout for row in here for layout in row.core_layouts.values()]
    controls = [row for group in groups_of(here) for row in controls_of(group)]
    found = sentences("warnings.txt.j2", "of_rows", rows=here, controls=controls, layouts=layouts, doubt=UNPROVEN)
    return (*found, *roof_warnings(here), *trial_warnings(here, lambda row: row.shown))


def warnings_of_run(run: Run) -> tuple[str, ...]:
    """What holds for the run as a whole."""
    trials = [record for record in run.latest().values() if record.samples_s]
    found = sentences(
        "warnings.txt.j2",
        "of_run",
        is_dirty=any(environment.facts.get("dirty") for environment in environments_of(run)),
        codes=dict.fromkeys(record.code_id for record in trials),
        machines=dict.fromkeys(record.env_id for record in trials if record.provenance == "measured"),
    )
    here = any(cell.spec.machine is None for cell in run.header.cells)
    return (*found, *(machine_warnings(run) if here else ()), *filter(None, [damage_sentence(run)]))
