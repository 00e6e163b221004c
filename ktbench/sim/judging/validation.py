"""Compares the simulator with published numbers and measured cells: by cell, group and claim, as templates show it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import yaml

from ktbench.resources import data_folder
from ktbench.sim.calibration import Calibration, calibration_yaml, read_calibration
from ktbench.sim.judging.fitting import FITTED_MODEL, STAGES, Fitted, fit_all, fit_measured, fitted_ids, is_fitted
from ktbench.sim.judging.measured import MeasuredCell
from ktbench.sim.judging.published import PublishedCell, observations_of, of, residual
from ktbench.sim.simulation import ON_CORES, resolved_deferral, step_seconds, with_deferral
from ktbench.sim.workloads import WORKLOADS
from ktbench.spec.published import Published
from ktbench.spec.run_spec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """Relative errors of `cells` cells: absolute ones at the median, 90 % and the most, and the mean of signed ones."""

    cells: int
    median: float
    p90: float
    worst: float
    bias: float


def quality_of(errors: Sequence[float]) -> Quality:
    """Of at least one signed relative error. Raises ValueError for none."""
    if not errors:
        raise ValueError("errors: none to judge by")
    off = np.abs(errors)
    return Quality(
        cells=len(errors),
        median=float(np.median(off)),
        p90=float(np.quantile(off, 0.9)),
        worst=float(off.max()),
        bias=float(np.mean(errors)),
    )


# The figures of `reports/published` that the simulator is judged on.
FIGURES = (
    *("fig3", "fig7", "fig10", "fig11", "fig12", "fig14"),
    *("placement", "layerwise", "llamafile", "sft", "concurrency", "stated"),
)
# Closer than this two simulated steps are equal.
_TIE = 1e-6
STATIC_POLICIES = ("random", "uniform", "front_loading", "frequency")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedError:
    """One cell, `fitted` where constants were fitted on it.

    `error` is simulated over published throughput, less 1; where a share of busy time was published, of that share.
    """

    observation: PublishedCell
    error: float
    fitted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Cells that are judged together, with the most that their errors should be at the median and at 90 %."""

    name: str
    holds: Callable[[PublishedCell], bool]
    median: float | None = None
    p90: float | None = None


_EVALUATION = ("fig11", "fig12", "fig14")


def _is_placed(one: PublishedCell) -> bool:
    return one.spec.engine.placement.policy in STATIC_POLICIES


GROUPS: tuple[Target, ...] = (
    Target(name="Fig. 3, kernels at 1 to 1024 tokens", holds=of("fig3", phase="layer")),
    Target(name="Fig. 3, PyTorch's kernels", holds=of("fig3", phase="layer", base=True)),
    Target(name="Fig. 7, kernels at 1 to 8 tokens", holds=of("fig7", phase="layer")),
    Target(name="Fig. 12, decode with and without deferral", holds=of("fig12", phase="decode"), median=0.05, p90=0.12),
    Target(name="Fig. 12, decode of base", holds=of("fig12", phase="decode", base=True)),
    Target(name="Fig. 14, decode breakdown", holds=of("fig14", phase="decode"), median=0.07, p90=0.15),
    Target(name="Fig. 11, prefill, nine lengths, both GPUs", holds=of("fig11", phase="prefill"), median=0.10, p90=0.22),
    Target(name="Fig. 11, prefill of base", holds=of("fig11", phase="prefill", base=True)),
    Target(name="Fig. 14, prefill breakdown", holds=of("fig14", phase="prefill")),
    Target(
        name="all of Fig. 11, 12 and 14 on the other two models",
        holds=lambda one: one.figure in _EVALUATION and one.model != FITTED_MODEL,
        median=0.09,
        p90=0.24,
    ),
    Target(name="expert placement, four static strategies", holds=_is_placed, median=0.04, p90=0.10),
    Target(name="layerwise prefill, 2,048 to 32,768 tokens, one to eight GPUs", holds=of("layerwise")),
    Target(name="decode of 0.2 and 0.2.1, eight and six experts", holds=of("llamafile")),
    Target(name="fine-tuning, 512 tokens at a time", holds=of("sft", phase="train")),
    Target(name="one request and four at once", holds=of("concurrency"), median=0.20, p90=0.20),
    Target(name="decode that pages state in passing", holds=of("stated", phase="decode")),
    Target(name="PyTorch's layer for one token, one socket and two", holds=of("stated", phase="layer", base=True)),
)


def judge(observations: Sequence[PublishedCell], calibrations: Mapping[str, Calibration]) -> tuple[PublishedError, ...]:
    """Every observation simulated, under the calibration that its machine names."""
    fitted = fitted_ids(observations)
    return tuple(
        PublishedError(observation=one, error=_error(one, _of_machine(one, calibrations)), fitted=one.id in fitted)
        for one in observations
    )


def _error(one: PublishedCell, calibration: Calibration) -> float:
    """A longer step is less throughput; a larger share is a larger share."""
    off = residual(one, calibration)
    return exp(off if one.kind == "host_busy" else -off) - 1


def _of_machine(one: PublishedCell, calibrations: Mapping[str, Calibration]) -> Calibration:
    machine = one.spec.machine
    if machine is None or machine.calibration not in calibrations:
        raise ValueError(f"{one.id}: no calibration for its machine")
    return calibrations[machine.calibration]


def qualities(errors: Sequence[PublishedError]) -> Iterator[tuple[Target, bool, Quality]]:
    """Quality of every group, of its fitted cells (True) and of the others; those without cells are left out."""
    for group in GROUPS:
        for fitted in (True, False):
            if found := [one.error for one in errors if group.holds(one.observation) and one.fitted == fitted]:
                yield group, fitted, quality_of(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement in words, and of how many cases it holds."""

    text: str
    right: int
    cases: int


def saturation(errors: Sequence[PublishedError], calibration: Calibration) -> Claim:
    """Whether the smallest number of deferred experts that saturates the host is the published choice."""
    chosen = [
        one.observation for one in errors if one.observation.figure == "fig12" and one.observation.spec.engine.deferral
    ]
    right = sum(
        resolved_deferral(with_deferral(one.spec, "auto"), calibration) == one.spec.engine.deferral for one in chosen
    )
    return Claim(
        text="the published number of deferred experts is the simulator's choice", right=right, cases=len(chosen)
    )


def placement_order(errors: Sequence[PublishedError], least: float = 0.03) -> Claim:
    """Of pairs of strategies at one ratio, published at speeds more than `least` apart: is the same one faster."""
    placed = [one for one in errors if one.observation.figure == "placement" and _is_placed(one.observation)]
    pairs = [
        (one, other)
        for place, one in enumerate(placed)
        for other in placed[:place]
        if _ratio(one) == _ratio(other) and abs(one.observation.value / other.observation.value - 1) > least
    ]
    right = sum(_is_faster(one, other) for one, other in pairs)
    return Claim(text="of two placements the published faster one is faster", right=right, cases=len(pairs))


def _ratio(one: PublishedError) -> float:
    return one.observation.spec.engine.placement.ratio


def _is_faster(one: PublishedError, other: PublishedError) -> bool:
    """Whether the published faster one is faster; as fast as the other is not."""
    fast, slow = sorted((one, other), key=lambda each: each.observation.value)
    ratio = _simulated_s(slow) / _simulated_s(fast)
    return ratio > 1 + _TIE


def _simulated_s(one: PublishedError) -> float:
    return one.observation.value / (1 + one.error)


# What each arm of the breakdown is compared with, and the arms that the paper prints (Fig. 14).
_OVER: Mapping[str, Mapping[str, str]] = {
    "prefill": {"+v": "base", "+m": "base", "+m+d": "+m", "+m+d+n": "+m+d", "+m+d+n+c": "+m+d+n"},
    "decode": {"+v": "base", "+m": "base", "+v+d": "+v", "+v+d+n": "+v+d", "+v+d+n+c": "+v+d+n"},
}


def gains(errors: Sequence[PublishedError], worth: float = 0.005) -> Claim:
    """Of gains of the breakdown more than `worth` from 1: is the simulated one on the same side."""
    cells = {_place(one): one for one in errors if one.observation.figure in _EVALUATION}
    found = [
        (one, cells[over])
        for (phase, model, arm), one in cells.items()
        if (over := (phase, model, _OVER.get(phase, {}).get(arm, ""))) in cells
    ]
    clear = [(one, over) for one, over in found if abs(over.observation.value / one.observation.value - 1) > worth]
    right = sum(_is_faster(one, over) for one, over in clear)
    return Claim(text="gains of the breakdown are on the published side of 1", right=right, cases=len(clear))


def _place(one: PublishedError) -> tuple[str, str, str]:
    seen = one.observation
    work = seen.spec.workload
    arm = seen.spec.engine.label.replace("+v+m+d+n+c", "+m+d+n" if work.phase == "prefill" else "+v+d+n+c")
    of_breakdown = seen.spec.precision == "bf16" and work.prompt in (288, 8192) and not seen.spec.engine.deferral
    return (work.phase if of_breakdown else f"{seen.id}", seen.model, arm)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredError:
    """A measured cell, and its step simulated."""

    cell: MeasuredCell
    simulated_s: float

    @property
    def fitted(self) -> bool:
        """Whether the constants were fitted on it."""
        return is_fitted(self.cell.spec)

    @property
    def error(self) -> float:
        """Simulated over measured time, less 1."""
        return self.simulated_s / self.cell.step_s - 1


def judge_measured(cells: Sequence[MeasuredCell], cost: Calibration) -> list[MeasuredError]:
    """Every cell simulated on its machine. Raises ValueError for a cell that cannot be, as `step_graph`."""
    return [MeasuredError(cell=one, simulated_s=step_seconds(one.spec, cost)) for one in cells]


_EXPLANATIONS = "validation/resists.yaml"
# A cell with a larger error needs an explanation.
_OUTLIER = 0.24


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What a validation shows: values of its template, and what is to be kept, files by name."""

    values: Mapping[str, Any]
    files: Mapping[str, str]


def judge_publications(
    numbers: Sequence[Published],
    compose: Callable[[Sequence[str]], RunSpec],
    *,
    fit: bool,
    on_stage: Callable[[str], None],
) -> Judgement:
    """The simulator judged on published numbers; with `fit` after its calibrations were fitted on their fitting sets.

    `compose` returns the cell of some overrides of the configuration, `on_stage` is told what was fitted.
    """
    observations = observations_of(numbers, compose)
    calibrations = {name: read_calibration(name) for name in STAGES}
    fitted: list[Fitted] = []
    for one in fit_all(observations, calibrations) if fit else ():
        fitted.append(one)
        on_stage(f"fitted {one.stage.name}: {len(one.observations)} cells, rms {one.rms:.1%}")
    calibrations |= {one.calibration.name: one.calibration for one in fitted}
    errors = judge(observations, calibrations)
    files = {"cells.csv": cells_csv(errors)}
    files |= {f"{one.calibration.name}.yaml": calibration_yaml(one.calibration) for one in fitted}
    values = {
        "qualities": list(qualities(errors)),
        "claims": (gains(errors), saturation(errors, calibrations["ktransformers"]), placement_order(errors)),
        "outlier": _OUTLIER,
        "far": sorted((one for one in errors if abs(one.error) > _OUTLIER), key=lambda one: -abs(one.error)),
        "why": read_explanations(),
        "fitted": fitted,
    }
    return Judgement(values=values, files=files)


def judge_runs(
    measured: Sequence[MeasuredCell], runs: Sequence[str], *, fit: bool, on_left_out: Callable[[str], None]
) -> Judgement | None:
    """The simulator judged on the measured cells of `runs`, with `fit` after the constants of our engine were fitted.

    `on_left_out` is told of cells that cannot be simulated; None where there are no others. Raises RequestError where
    no cell is of the fitting set.
    """
    shipped = read_calibration(ON_CORES)
    cost = fit_measured(measured, shipped) if fit else shipped
    judged: list[MeasuredError] = []
    for one in measured:
        try:
            judged += judge_measured([one], cost)
        except ValueError as error:
            on_left_out(f"left out: {one.summary}: {error}")
    if not judged:
        return None
    held_out = [one for one in judged if not one.fitted]
    phases = {phase: [one for one in held_out if one.cell.spec.workload.phase == phase] for phase in WORKLOADS}
    groups = {"held out, all": held_out} | {f"held out, {phase}": found for phase, found in phases.items()}
    groups["fitted"] = [one for one in judged if one.fitted]
    found = {name: quality_of([one.error for one in group]) for name, group in groups.items() if group}
    files = {f"{cost.name}.yaml": calibration_yaml(cost)} if fit else {}
    return Judgement(values={"qualities": found, "judged": judged, "runs": runs}, files=files)
