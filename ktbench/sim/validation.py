"""What a validation shows: values of the templates `validation*.md.j2`, and every cell's error as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ktbench.resources import data_folder
from ktbench.sim.calibration import Calibration
from ktbench.sim.fitting import Fitted
from ktbench.sim.judging import (
    MeasuredError,
    PublishedError,
    gains,
    placement_order,
    qualities,
    quality_of,
    saturation,
)

_EXPLANATIONS = "validation/resists.yaml"
# A cell with a larger error needs an explanation.
_OUTLIER = 0.24


def published_values(
    errors: Sequence[PublishedError], calibrations: Mapping[str, Calibration], fitted: Sequence[Fitted]
) -> dict[str, Any]:
    """Errors by group, claims, the cells that are far off with their explanations, and the stages that were fitted."""
    return {
        "qualities": list(qualities(errors)),
        "claims": (gains(errors), saturation(errors, calibrations["ktransformers"]), placement_order(errors)),
        "outlier": _OUTLIER,
        "far": sorted((one for one in errors if abs(one.error) > _OUTLIER), key=lambda one: -abs(one.error)),
        "why": read_explanations(),
        "fitted": fitted,
    }


def measured_values(judged: Sequence[MeasuredError], runs: Sequence[str]) -> dict[str, Any]:
    """Errors of measured cells, all held out and by phase, the fitted ones separately; `runs` are names of runs."""
    held_out = [one for one in judged if not one.fitted]
    phases = {phase: [one for one in held_out if one.cell.spec.workload.phase == phase] for phase in _PHASES}
    groups = {"held out, all": held_out} | {f"held out, {phase}": found for phase, found in phases.items()}
    groups["fitted"] = [one for one in judged if one.fitted]
    found = {name: quality_of([one.error for one in group]) for name, group in groups.items() if group}
    return {"qualities": found, "judged": judged, "runs": runs}


_PHASES = ("layer", "prefill", "decode", "train")


def read_explanations() -> dict[str, str]:
    """Why cells are far off, by the id of the published number. Raises ValueError for an entry with other keys."""
    path = data_folder("reports") / _EXPLANATIONS
    found: dict[str, str] = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        if set(entry) != {"ids", "why"}:
            raise ValueError(f"{path}: allowed keys are ids and why, this entry has {sorted(entry)}")
        found |= dict.fromkeys(entry["ids"], entry["why"])
    return found


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
