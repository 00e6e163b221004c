"""`validate`: fits the machine model on its fitting set, and judges it on published numbers, runs or users' reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ktbench import sim
from ktbench.cli.keys import ValidationArguments, only_arguments
from ktbench.files import write_whole
from ktbench.report.template import render
from ktbench.results import Run, free_folder, read_published, read_run
from ktbench.results.find import RUNS, find_run
from ktbench.run.progress import say
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.report.figures.sheet import Sheet


def run(overrides: Sequence[str]) -> int:
    """Print errors by group; write them with those of every cell and with the constants.

    Without `fit=true` the shipped constants are judged (seconds); with it they are fitted again first (about a minute).
    With `run=RUN` the measured cells of a run are simulated on its machine; `fit=true` then fits the constants of our
    engine on those of the fitting set (`is_fitted`). With `users=true` reports of users are simulated on machines of
    the catalogue's parts, and drawn; `fit=true` then fits the constants of llama.cpp.
    """
    given = only_arguments("validate", overrides, ValidationArguments)
    figure: Sheet | None = None
    if given.users:
        files, figure = _of_users(fit=given.fit)
    else:
        files = _of_runs(given.run, fit=given.fit) if given.run else _of_publications(fit=given.fit)
    print(files["validation.md"].rstrip("\n"))
    named = f"validate-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(given.out) if given.out else free_folder(RUNS, named)
    for name, content in files.items():
        print(f"wrote {write_whole(folder / name, content)}")
    if figure is not None:
        from ktbench.report.figures.output import save

        print("\n".join(f"wrote {path}" for path in save(figure, folder, "users")))
    return 0


def _compose(words: Sequence[str]) -> RunSpec:
    return read_request(words).parts[0].spec


def _of_users(*, fit: bool) -> tuple[dict[str, str], Sheet]:
    """The files of a validation on users' reports, by name, and its figure."""
    from ktbench.report.figures.published import UserPoint, draw_users

    found = sim.judge_users(_compose, fit=fit)
    judged = found.values["judged"]
    points = [
        UserPoint(
            program=one.report.family,
            reported=one.report.tokens_per_s,
            simulated=one.simulated,
            low=one.low,
            high=one.high,
            fitted=one.report.fitted,
        )
        for one in judged
    ]
    _, _, quality, covered = found.values["groups"][0]
    headline = f"Simulated decode is {quality.median:.0%} off what users report, at the median"
    caption = (
        f"{len(judged)} machines and settings of users, simulated from data sheets; hollow: used to fit.",
        f"Held out: {quality.cells}, median error {quality.median:.1%}, {covered:.0%} in their interval.",
    )
    return _files("validation_users.md.j2", found), draw_users(points, headline, caption)


def _files(template: str, found: sim.Judgement) -> dict[str, str]:
    return {"validation.md": render(template, **found.values), **found.files}


def _of_publications(*, fit: bool) -> dict[str, str]:
    """The files of a validation on published numbers, by name."""
    found = sim.judge_publications(read_published(*sim.FIGURES), _compose, fit=fit, on_stage=say)
    return _files("validation.md.j2", found)


def _of_runs(names: str, *, fit: bool) -> dict[str, str]:
    """The files of a validation on measured runs, by name. Raises RequestError where no cell was timed."""
    runs = [read_run(find_run(name)) for name in names.split(",")]
    measured = [cell for run in runs for cell in _measured(run)]
    found = sim.judge_runs(measured, [run.header.run for run in runs], fit=fit, on_left_out=say)
    if found is None:
        raise RequestError(f"validate run={names}: the runs have no timed cell that the simulator covers")
    return _files("validation_measured.md.j2", found)


def _measured(run: Run) -> list[sim.MeasuredCell]:
    cells = run.header.cells
    records = {cell.key: run.of_cell(cell.key) for cell in cells}
    return sim.measured_cells(run.environments[0], cells, records, run.latest().values())
