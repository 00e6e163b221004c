"""Writes what a validation found: errors by group, every cell's, and the constants that they were found with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from ktbench.resources import data_folder
from ktbench.sim.calibration import Calibration, own_constants
from ktbench.sim.fitting import Fitted
from ktbench.sim.judging import Claim, Error, gains, placement_order, qualities, saturation
from ktbench.spec.errors import RequestError

_RESISTS = "validation/resists.yaml"
# A cell that is off by more has to be explained.
_TELLING = 0.24


def write_validation(
    folder: Path, errors: Sequence[Error], calibrations: Mapping[str, Calibration], fitted: Sequence[Fitted]
) -> Iterator[str]:
    """Writes `validation.md`, `cells.csv` and the calibrations that were fitted; the text, then the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(_text(errors, calibrations, fitted))
    yield text
    files = {"validation.md": f"{text}\n", "cells.csv": cells_csv(errors)}
    files |= {f"{one.calibration.name}.yaml": calibration_yaml(one.calibration) for one in fitted}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="\n")
        yield f"wrote {folder / name}"


def _text(errors: Sequence[Error], calibrations: Mapping[str, Calibration], fitted: Sequence[Fitted]) -> Iterator[str]:
    yield "# The machine model against published numbers"
    yield ""
    yield "Errors of throughput, simulated over published, less 1. Cells on which constants were fitted stand apart."
    yield ""
    yield from _quality_table(errors)
    yield ""
    yield from (f"- {_said(claim)}" for claim in _claims(errors, calibrations))
    yield ""
    yield from _resisting(errors)
    if fitted:
        yield ""
        yield from _stage_table(fitted)


def _quality_table(errors: Sequence[Error]) -> Iterator[str]:
    yield "| group | cells | n | median | 90 % | maximum | bias | target (median, 90 %) |"
    yield "| --- | --- | --: | --: | --: | --: | --: | --- |"
    for group, is_fitted, found in qualities(errors):
        target = ""
        if group.median and group.p90 and not is_fitted:
            missed = found.median > group.median or found.p90 > group.p90
            target = f"{group.median:.0%}, {group.p90:.0%} {'missed' if missed else 'met'}"
        shown = (found.median, found.p90, found.worst)
        figures = " | ".join(f"{value:.1%}" for value in shown)
        cells = "fitted" if is_fitted else "held out"
        yield f"| {group.name} | {cells} | {found.cells} | {figures} | {found.bias:+.1%} | {target} |"


def _claims(errors: Sequence[Error], calibrations: Mapping[str, Calibration]) -> tuple[Claim, ...]:
    return gains(errors), saturation(errors, calibrations["ktransformers"]), placement_order(errors)


def _said(claim: Claim) -> str:
    return f"{claim.text}: {claim.right} of {claim.cases}"


def _resisting(errors: Sequence[Error]) -> Iterator[str]:
    """Cells that are far off, each with its explanation."""
    why = read_resisting()
    yield f"Cells that resist (off by more than {_TELLING:.0%}):"
    yield ""
    far = sorted((one for one in errors if abs(one.error) > _TELLING), key=lambda one: -abs(one.error))
    for one in far:
        seen = one.observation
        said = why.get(seen.id, "not explained")
        yield f"- {seen.id}, {seen.spec.engine.label}, {seen.spec.summary}: {one.error:+.0%} — {said}"


def read_resisting() -> dict[str, str]:
    """Why cells resist, by the id of the published number. Raises RequestError for a file that says it otherwise."""
    path = data_folder("reports") / _RESISTS
    found: dict[str, str] = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        if set(entry) != {"ids", "why"}:
            raise RequestError(f"{path}: entries have ids and why, this one {sorted(entry)}")
        found |= dict.fromkeys(entry["ids"], entry["why"])
    return found


def _stage_table(fitted: Sequence[Fitted]) -> Iterator[str]:
    yield "| fitted | cells | rms | constants |"
    yield "| --- | --: | --: | --- |"
    for one in fitted:
        values = ", ".join(f"{name} {one.calibration[name]:.4g}" for name in one.stage.constants)
        yield f"| {one.stage.name} | {len(one.observations)} | {one.rms:.1%} | {values} |"


def cells_csv(errors: Sequence[Error]) -> str:
    """One line for each cell: what was published, what is simulated, in seconds of a step or as a share."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["id", "figure", "arm", "model", "machine", "precision", "phase", "kind", "error", "fitted"])
    for one in errors:
        seen = one.observation
        machine = seen.spec.machine.name if seen.spec.machine else ""
        place = [seen.id, seen.figure, seen.spec.engine.label, seen.model, machine, seen.spec.precision]
        writer.writerow([*place, seen.spec.workload.phase, seen.kind, f"{one.error:.4f}", one.fitted])
    return file.getvalue()


def calibration_yaml(calibration: Calibration) -> str:
    """The calibration as `conf/calibration` keeps it, its own constants alone."""
    content = own_constants(calibration)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
