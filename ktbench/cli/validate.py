"""`validate`: fits the machine model on its fitting set, and judges it on published numbers, runs or users' reports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ktbench.cli.help import HELP
from ktbench.files import write_whole
from ktbench.report.template import render
from ktbench.results import free_folder, read_published, read_run
from ktbench.results.find import RUNS, find_run
from ktbench.run.progress import say
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from ktbench.report.figures.sheet import Sheet
    from ktbench.sim.calibration import Calibration
    from ktbench.sim.fitting import Fitted
    from ktbench.sim.judging import MeasuredError
    from ktbench.sim.measured import MeasuredCell

FIGURES = (
    *("fig3", "fig7", "fig10", "fig11", "fig12", "fig14"),
    *("placement", "layerwise", "llamafile", "sft", "concurrency", "stated"),
)
_KEYS = tuple(key.name for key in HELP["validate"].keys)


def run(overrides: Sequence[str]) -> int:
    """Print errors by group; write them with those of every cell and with the constants.

    Without `fit=true` the shipped constants are judged (seconds); with it they are fitted again first (about a minute).
    With `run=RUN` the measured cells of a run are simulated on its machine; `fit=true` then fits the constants of our
    engine on those of the fitting set (`is_fitted`). With `users=true` reports of users are simulated on machines of
    the catalogue's parts, and drawn; `fit=true` then fits the constants of llama.cpp.
    """
    options = _options(overrides)
    fit, users = options["fit"] == "true", options["users"] == "true"
    figure: Sheet | None = None
    if users:
        files, figure = _of_users(fit=fit)
    else:
        files = _of_runs(options["run"], fit=fit) if options["run"] else _of_publications(fit=fit)
    print(files["validation.md"].rstrip("\n"))
    named = f"validate-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(options["out"]) if options["out"] else free_folder(RUNS, named)
    for name, content in files.items():
        print(f"wrote {write_whole(folder / name, content)}")
    if figure is not None:
        from ktbench.report.figures.output import save

        print("\n".join(f"wrote {path}" for path in save(figure, folder, "users")))
    return 0


def _options(overrides: Sequence[str]) -> dict[str, str]:
    options = dict.fromkeys(_KEYS, "")
    for word in overrides:
        key, _, value = word.partition("=")
        if key not in _KEYS or not value:
            raise RequestError(
                f"validate {word}: unknown argument; allowed are fit=true, run=RUN, users=true and out=FOLDER"
            )
        options[key] = value
    for key in ("fit", "users"):
        if options[key] not in ("", "true", "false"):
            raise RequestError(f"validate {key}={options[key]}: allowed are true and false")
    if options["run"] and options["users"] == "true":
        raise RequestError("validate users=true: excludes run=RUN, leave one of them out")
    return options


def _of_users(*, fit: bool) -> tuple[dict[str, str], Sheet]:
    """The files of a validation on users' reports, by name, and its figure."""
    from ktbench.report.figures.users import UserPoint, draw_users
    from ktbench.sim.calibration import calibration_yaml
    from ktbench.sim.user_reports import (
        COVERAGE,
        FITTED,
        fit_reports,
        judge_reports,
        judged_lines,
        read_user_reports,
        report_groups,
    )

    def compose(words: Sequence[str]) -> RunSpec:
        return read_request(words).parts[0].spec

    reports = read_user_reports()
    calibrations = {FITTED: fit_reports(reports, compose)} if fit else {}
    judged = judge_reports(reports, compose, calibrations)
    groups = list(report_groups(judged))
    pages = len({one.link for one in reports})
    text = render("validation_users.md.j2", judged=judged, groups=groups, pages=pages, meant=COVERAGE)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(judged_lines(judged))
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
    _, _, found, covered = groups[0]
    headline = f"Simulated decode is {found.median:.0%} off what users report, at the median"
    caption = (
        f"{len(judged)} machines and settings of users, simulated from data sheets; hollow: used to fit.",
        f"Held out: {found.cells}, median error {found.median:.1%}, {covered:.0%} in their interval.",
    )
    files = {"validation.md": text, "judged.csv": table.getvalue()}
    files |= {f"{name}.yaml": calibration_yaml(one) for name, one in calibrations.items()}
    return files, draw_users(points, headline, caption)


def _of_publications(*, fit: bool) -> dict[str, str]:
    """The files of a validation on published numbers, by name."""
    from ktbench.sim.calibration import calibration_yaml, read_calibration
    from ktbench.sim.fitting import STAGES, fit_all
    from ktbench.sim.judging import judge
    from ktbench.sim.observation import observations_of
    from ktbench.sim.validation import cells_csv, published_values

    observations = observations_of(read_published(*FIGURES), lambda words: read_request(words).parts[0].spec)
    calibrations = {name: read_calibration(name) for name in STAGES}
    fitted: list[Fitted] = []
    for one in fit_all(observations, calibrations) if fit else ():
        fitted.append(one)
        say(f"fitted {one.stage.name}: {len(one.observations)} cells, rms {one.rms:.1%}")
    calibrations |= {one.calibration.name: one.calibration for one in fitted}
    errors = judge(observations, calibrations)
    text = render("validation.md.j2", **published_values(errors, calibrations, fitted))
    files = {"validation.md": text, "cells.csv": cells_csv(errors)}
    return files | {f"{one.calibration.name}.yaml": calibration_yaml(one.calibration) for one in fitted}


def _of_runs(names: str, *, fit: bool) -> dict[str, str]:
    """The files of a validation on measured runs, by name. Raises RequestError where no cell was timed."""
    from ktbench.sim.calibration import calibration_yaml, read_calibration
    from ktbench.sim.fitting import fit_measured
    from ktbench.sim.measured import measured_cells
    from ktbench.sim.simulation import ON_CORES
    from ktbench.sim.validation import measured_values

    runs = [read_run(find_run(name)) for name in names.split(",")]
    measured: list[MeasuredCell] = []
    for one in runs:
        cells = one.header.cells
        records = {cell.key: one.of_cell(cell.key) for cell in cells}
        measured += measured_cells(one.environments[0], cells, records, one.latest().values())
    shipped = read_calibration(ON_CORES)
    cost = fit_measured(measured, shipped) if fit else shipped
    judged = list(_judged(measured, cost))
    if not judged:
        raise RequestError(f"validate run={names}: the runs have no timed cell that the simulator covers")
    values = measured_values(judged, [one.header.run for one in runs])
    files = {"validation.md": render("validation_measured.md.j2", **values)}
    return files | ({f"{cost.name}.yaml": calibration_yaml(cost)} if fit else {})


def _judged(cells: Sequence[MeasuredCell], cost: Calibration) -> Iterator[MeasuredError]:
    """The cells simulated; a line on stderr for one that cannot be."""
    from ktbench.sim.judging import judge_measured

    for one in cells:
        try:
            yield from judge_measured([one], cost)
        except ValueError as error:
            say(f"left out: {one.summary}: {error}")
