"""`validate`: fits the machine model on its fitting set, and judges it on the rest of the published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ktbench.sim.calibration import Calibration
    from ktbench.sim.fitting import Fitted
    from ktbench.sim.observation import Observation

SUMMARY = "judge the machine model on published numbers, after fitting it (fit=true), or on a run (run=RUN)"
FIGURES = ("fig3", "fig7", "fig10", "fig11", "fig12", "fig14", "placement")
_WORDS = ("fit", "run", "out")


def run(overrides: Sequence[str]) -> int:
    """Print errors by group, and write them with every cell's and with the constants.

    Without `fit=true` the constants that ship are judged, which takes seconds; with it they are fitted again first,
    which takes about a minute. With `run=RUN` cells that were measured in a run are simulated on its machine.
    """
    asked = _asked(overrides)
    folder = Path(asked["out"] or f"runs/validate-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if asked["run"]:
        from ktbench.cli.validate_run import validate_run

        return validate_run(asked["run"], folder)
    return _validate(folder, fit=asked["fit"] == "true")


def _asked(overrides: Sequence[str]) -> dict[str, str]:
    from ktbench.spec.errors import RequestError

    asked = dict.fromkeys(_WORDS, "")
    for word in overrides:
        key, _, value = word.partition("=")
        if key not in _WORDS or not value:
            raise RequestError(f"validate {word}: unknown argument; allowed are fit=true, run=RUN and out=FOLDER")
        asked[key] = value
    if asked["fit"] not in ("", "true", "false"):
        raise RequestError(f"validate fit={asked['fit']}: allowed are true and false")
    if asked["fit"] == "true" and asked["run"]:
        raise RequestError(
            "validate fit=true run=...: constants are fitted on published numbers, leave one of them out"
        )
    return asked


def _validate(folder: Path, *, fit: bool) -> int:
    from ktbench.cli.observing import observations_of
    from ktbench.cli.progress import say
    from ktbench.cli.validation import write_validation
    from ktbench.results import read_published
    from ktbench.sim.calibration import read_calibration
    from ktbench.sim.fitting import STAGES
    from ktbench.sim.judging import judge

    observations = observations_of(read_published(*FIGURES))
    calibrations = {name: read_calibration(name) for name in STAGES}
    fitted: list[Fitted] = []
    if fit:
        for one in _fitted(observations, dict(calibrations)):
            fitted.append(one)
            say(f"fitted {one.stage.name}: {len(one.observations)} cells, rms {one.rms:.1%}")
            calibrations[one.calibration.name] = one.calibration
    errors = judge(observations, calibrations)
    for line in write_validation(folder, errors, calibrations, fitted):
        print(line)
    return 0


def _fitted(observations: Sequence[Observation], start: Mapping[str, Calibration]) -> Iterator[Fitted]:
    """Stage after stage; a calibration goes on from what the one that it is based on has become."""
    from ktbench.sim.calibration import base_of, rebased
    from ktbench.sim.fitting import fit

    found: dict[str, Calibration] = {}
    for name, calibration in start.items():
        base = found.get(base_of(name) or "")
        for one in fit(observations, calibration if base is None else rebased(calibration, base)):
            found[name] = one.calibration
            yield one
