"""Texts of a validation: errors by group, of every cell, and the constants that were fitted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import yaml

from ktbench.resources import data_folder
from ktbench.sim.calibration import Calibration, own_constants
from ktbench.sim.fitting import Fitted
from ktbench.sim.judging import (
    Claim,
    MeasuredError,
    PublishedError,
    Quality,
    gains,
    placement_order,
    qualities,
    quality_of,
    saturation,
)

_EXPLANATIONS = "validation/resists.yaml"
# A cell with a larger error needs an explanation.
_OUTLIER = 0.24


def validation_files(
    errors: Sequence[PublishedError], calibrations: Mapping[str, Calibration], fitted: Sequence[Fitted]
) -> dict[str, str]:
    """`validation.md`, `cells.csv`, and the calibrations that were fitted, by file name."""
    text = "\n".join(_text(errors, calibrations, fitted))
    files = {"validation.md": f"{text}\n", "cells.csv": cells_csv(errors)}
    return files | {f"{one.calibration.name}.yaml": calibration_yaml(one.calibration) for one in fitted}


def _text(
    errors: Sequence[PublishedError], calibrations: Mapping[str, Calibration], fitted: Sequence[Fitted]
) -> Iterator[str]:
    yield "# The machine model against published numbers"
    yield ""
    yield "Errors of throughput, simulated over published, less 1. Fitted cells are listed separately."
    yield ""
    yield from _quality_table(errors)
    yield ""
    yield from (f"- {_claim_text(claim)}" for claim in _claims(errors, calibrations))
    yield ""
    yield from _outliers(errors)
    if fitted:
        yield ""
        yield from _stage_table(fitted)


def _quality_table(errors: Sequence[PublishedError]) -> Iterator[str]:
    yield "| group | cells | n | median | 90 % | maximum | bias | target (median, 90 %) |"
    yield "| --- | --- | --: | --: | --: | --: | --: | --- |"
    for group, is_fitted, found in qualities(errors):
        target = ""
        if group.median and group.p90 and not is_fitted:
            missed = found.median > group.median or found.p90 > group.p90
            target = f"{group.median:.0%}, {group.p90:.0%} {'missed' if missed else 'met'}"
        yield f"| {group.name} | {'fitted' if is_fitted else 'held out'} | {_figures(found)} | {target} |"


def _claims(errors: Sequence[PublishedError], calibrations: Mapping[str, Calibration]) -> tuple[Claim, ...]:
    return gains(errors), saturation(errors, calibrations["ktransformers"]), placement_order(errors)


def _claim_text(claim: Claim) -> str:
    return f"{claim.text}: {claim.right} of {claim.cases}"


def _outliers(errors: Sequence[PublishedError]) -> Iterator[str]:
    """Cells that are far off, each with its explanation."""
    why = read_explanations()
    yield f"Cells that resist (off by more than {_OUTLIER:.0%}):"
    yield ""
    far = sorted((one for one in errors if abs(one.error) > _OUTLIER), key=lambda one: -abs(one.error))
    for one in far:
        seen = one.observation
        reason = why.get(seen.id, "not explained")
        yield f"- {seen.id}, {seen.spec.engine.label}, {seen.spec.summary}: {one.error:+.0%} — {reason}"


def read_explanations() -> dict[str, str]:
    """Why cells are far off, by the id of the published number. Raises ValueError for an entry with other keys."""
    path = data_folder("reports") / _EXPLANATIONS
    found: dict[str, str] = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        if set(entry) != {"ids", "why"}:
            raise ValueError(f"{path}: allowed keys are ids and why, this entry has {sorted(entry)}")
        found |= dict.fromkeys(entry["ids"], entry["why"])
    return found


def _stage_table(fitted: Sequence[Fitted]) -> Iterator[str]:
    yield "| fitted | cells | rms | constants |"
    yield "| --- | --: | --: | --- |"
    for one in fitted:
        values = ", ".join(f"{name} {one.calibration[name]:.4g}" for name in one.stage.constants)
        yield f"| {one.stage.name} | {len(one.observations)} | {one.rms:.1%} | {values} |"


def cells_csv(errors: Sequence[PublishedError]) -> str:
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


def measured_lines(judged: Sequence[MeasuredError], runs: Sequence[str]) -> Iterator[str]:
    """Errors of measured cells in Markdown: by phase, then of every cell; `runs` are the names of their runs."""
    yield f"# The machine model against runs: {', '.join(runs)}"
    yield ""
    yield "Measured: medians over rounds. Simulated on the same machine, at the roofs next to each trial."
    yield "Errors of the time of a step, simulated over measured, less 1."
    yield ""
    yield "| cells | n | median | 90 % | maximum | bias |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for name, group in _groups(judged):
        yield f"| {name} | {_figures(quality_of([one.error for one in group]))} |"
    yield ""
    yield "| cell | measured (ms) | simulated (ms) | error | |"
    yield "| --- | --: | --: | --: | --- |"
    for one in judged:
        times = f"{one.measured_s * 1e3:.4g} | {one.simulated_s * 1e3:.4g}"
        fitted = "fitted" if one.fitted else ""
        cell = f"{one.spec.label}, {replace(one.spec, machine=None).summary}"
        yield f"| {cell} | {times} | {one.error:+.1%} | {fitted} |"


def _groups(judged: Sequence[MeasuredError]) -> Iterator[tuple[str, list[MeasuredError]]]:
    """All held out, then by phase; those that constants were fitted on separately."""
    yield from _some("held out, all", [one for one in judged if not one.fitted])
    for phase in ("layer", "prefill", "decode"):
        mine = [one for one in judged if one.spec.workload.phase == phase]
        yield from _some(f"held out, {phase}", [one for one in mine if not one.fitted])
    yield from _some("fitted", [one for one in judged if one.fitted])


def _some(name: str, group: list[MeasuredError]) -> Iterator[tuple[str, list[MeasuredError]]]:
    if group:
        yield name, group


def _figures(found: Quality) -> str:
    return f"{found.cells} | {found.median:.1%} | {found.p90:.1%} | {found.worst:.1%} | {found.bias:+.1%}"
