"""`validate`: fits the machine model on its fitting set, and judges it on published numbers or on measured runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ktbench.results import read_published, read_run
from ktbench.results.find import find_run
from ktbench.run.progress import say
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError

if TYPE_CHECKING:
    from ktbench.sim.fitting import Fitted
    from ktbench.sim.judging import MeasuredError
    from ktbench.sim.measured import MeasuredCell

FIGURES = ("fig3", "fig7", "fig10", "fig11", "fig12", "fig14", "placement")
_KEYS = ("fit", "run", "out")


def run(overrides: Sequence[str]) -> int:
    """Print errors by group; write them with those of every cell and with the constants.

    Without `fit=true` the shipped constants are judged (seconds); with it they are fitted again first (about a minute).
    With `run=RUN` the measured cells of a run are simulated on its machine.
    """
    options = _options(overrides)
    folder = Path(options["out"] or f"runs/validate-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    files = _of_runs(options["run"]) if options["run"] else _of_publications(fit=options["fit"] == "true")
    folder.mkdir(parents=True, exist_ok=True)
    print(files["validation.md"].rstrip("\n"))
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="\n")
        print(f"wrote {folder / name}")
    return 0


def _options(overrides: Sequence[str]) -> dict[str, str]:
    options = dict.fromkeys(_KEYS, "")
    for word in overrides:
        key, _, value = word.partition("=")
        if key not in _KEYS or not value:
            raise RequestError(f"validate {word}: unknown argument; allowed are fit=true, run=RUN and out=FOLDER")
        options[key] = value
    if options["fit"] not in ("", "true", "false"):
        raise RequestError(f"validate fit={options['fit']}: allowed are true and false")
    if options["fit"] == "true" and options["run"]:
        raise RequestError(
            "validate fit=true run=...: constants are fitted on published numbers, leave one of them out"
        )
    return options


def _of_publications(*, fit: bool) -> dict[str, str]:
    """The files of a validation on published numbers, by name."""
    from ktbench.sim.calibration import read_calibration
    from ktbench.sim.fitting import STAGES, fit_all
    from ktbench.sim.judging import judge
    from ktbench.sim.observation import observations_of
    from ktbench.sim.validation import validation_files

    observations = observations_of(read_published(*FIGURES), lambda words: read_request(words).parts[0].spec)
    calibrations = {name: read_calibration(name) for name in STAGES}
    fitted: list[Fitted] = []
    for one in fit_all(observations, calibrations) if fit else ():
        fitted.append(one)
        say(f"fitted {one.stage.name}: {len(one.observations)} cells, rms {one.rms:.1%}")
    calibrations |= {one.calibration.name: one.calibration for one in fitted}
    return validation_files(judge(observations, calibrations), calibrations, fitted)


def _of_runs(names: str) -> dict[str, str]:
    """The file of a validation on measured runs, by its name. Raises RequestError where no cell was timed."""
    from ktbench.sim.measured import measured_cells
    from ktbench.sim.validation import measured_lines

    runs = [read_run(find_run(name)) for name in names.split(",")]
    judged: list[MeasuredError] = []
    for one in runs:
        cells = one.header.cells
        records = {cell.key: one.of_cell(cell.key) for cell in cells}
        judged += _judged(measured_cells(one.environments[0], cells, records, one.latest().values()))
    if not judged:
        raise RequestError(f"validate run={names}: the runs have no timed cell that the simulator covers")
    return {"validation.md": "\n".join(measured_lines(judged, [one.header.run for one in runs])) + "\n"}


def _judged(cells: Sequence[MeasuredCell]) -> Iterator[MeasuredError]:
    """The cells simulated; a line on stderr for one that cannot be."""
    from ktbench.sim.calibration import read_calibration
    from ktbench.sim.judging import judge_measured
    from ktbench.sim.simulation import ON_CORES

    for one in cells:
        try:
            yield from judge_measured([one], read_calibration(ON_CORES))
        except ValueError as error:
            say(f"left out: {one.spec.label}, {replace(one.spec, machine=None).summary}: {error}")
