"""The simulator compared with recorded runs: work, counters, time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ktbench.resources import data_folder
from ktbench.results import read_run
from ktbench.sim.calibration import Calibration, read_calibration
from ktbench.sim.judging.fitting import fit_measured, is_fitted
from ktbench.sim.judging.measured import MeasuredCell, can_be_judged, machine_at, measured_cell, recorded_machine
from ktbench.sim.judging.validation import judge_measured, quality_of
from ktbench.sim.simulation import resolved_deferral, step_counters, step_work, with_deferral
from ktbench.spec.errors import RequestError
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import Cell, Record, RoofSample
from tests.sim.testbed import testbed

COST = read_calibration("ktbench")
RUNS = sorted(path.parent for path in (data_folder("reports") / "recorded").glob("*/*/log.jsonl"))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One cell of a recorded run with all its turns."""

    run: Path
    cell: Cell
    records: tuple[Record, ...]
    machine: MachineSpec

    @property
    def observed(self) -> MeasuredCell | None:
        return measured_cell(self.cell.spec, self.records, self.machine)


@cache
def kept() -> tuple[Kept, ...]:
    """Arms of our engine that were timed and can be simulated.

    The trace behind routing=recorded is not shipped. Of served requests a trial is a replay, not steps of equal work.
    """
    return tuple(one for folder in RUNS for one in _of_run(folder) if one.records and can_be_judged(one.cell.spec))


def _of_run(folder: Path) -> Iterator[Kept]:
    run = read_run(folder)
    machine = recorded_machine(run.environments[0], run.latest().values())
    for cell in run.header.cells:
        work = cell.spec.workload
        ours = cell.spec.system == "ktbench" and work.routing != "recorded" and work.phase != "serve"
        if ours and cell.role == "arm":
            timed = tuple(record for record in run.of_cell(cell.key) if record.samples_s)
            yield Kept(run=folder, cell=cell, records=timed, machine=machine)


@cache
def observed() -> tuple[MeasuredCell, ...]:
    return tuple(one for one in (each.observed for each in kept()) if one is not None)


def test_work_is_that_of_the_records() -> None:
    for one in kept():
        spec, work = replace(one.cell.spec, machine=one.machine), one.records[-1].work
        assert work is not None
        counted = step_work(spec, COST)
        assert counted.tokens == work.tokens
        assert counted.flops == pytest.approx(work.flops, rel=1e-3), spec.summary
        drawn = spec.workload.phase in (
            "prefill",
            "train",
        )  # which experts the routers would select is drawn, not known
        assert counted.weight_bytes == pytest.approx(work.weight_bytes, rel=0.1 if drawn else 2e-3), spec.summary


def test_counters_move_where_those_of_the_records_did() -> None:
    for one in kept():
        spec = replace(one.cell.spec, machine=one.machine)
        counted = step_counters(with_deferral(spec, resolved_deferral(spec, COST)), COST)
        for evidence in one.records[-1].evidence:
            if evidence.seen is not None:
                seen = counted[evidence.counter]
                assert (seen > 0) == (evidence.seen > 0), f"{one.cell.label}, {spec.summary}: {evidence}"
                if (
                    evidence.counter in ("linear_calls", "deferred_experts", "amx_tiles")
                    and spec.workload.phase != "prefill"
                ):
                    assert seen * spec.workload.steps == evidence.seen or spec.engine.deferral == "auto"


def test_held_out_cells_are_simulated_to_15_percent() -> None:
    judged = judge_measured(observed(), COST)
    held = quality_of([one.error for one in judged if not one.fitted])
    assert held.cells > 150
    assert held.median <= 0.15 and held.p90 <= 0.25 and abs(held.bias) <= 0.05
    for name in ("zen4_2_cores", "granite_rapids_2_cores"):
        here = [run for run in kept() if run.run.parent.name == name]
        of_machine = judge_measured([one for one in (run.observed for run in here) if one is not None], COST)
        assert quality_of([one.error for one in of_machine if not one.fitted]).median <= 0.15, name


def test_fitted_cells_are_few_and_of_one_model() -> None:
    fitted = [one for one in observed() if is_fitted(one.spec)]
    assert {one.spec.model.name for one in fitted} == {"qwen3_30b_a3b"}
    assert len(fitted) < 0.3 * len(observed())
    assert quality_of([one.error for one in judge_measured(fitted, COST)]).median <= 0.05


def only(cost: Calibration, *names: str) -> Calibration:
    """The calibration of which these constants alone are to be fitted."""
    others = {name: replace(one, origin="prior") for name, one in cost.constants.items() if name not in names}
    return replace(cost, constants=cost.constants | others)


def test_the_fit_finds_constants_again() -> None:
    truth = only(COST, "vector_read", "fused_call_us").changed({"vector_read": 0.7, "fused_call_us": 90.0})
    some = [one for one in observed() if is_fitted(one.spec) and one.spec.workload.phase == "layer"][:12]
    made = [
        replace(one, step_s=judged.simulated_s) for one, judged in zip(some, judge_measured(some, truth), strict=True)
    ]
    found = fit_measured(made, only(COST, "vector_read", "fused_call_us"))
    assert found["vector_read"] == pytest.approx(0.7, rel=0.02)
    assert found["fused_call_us"] == pytest.approx(90, rel=0.1)
    assert found["vector_bf16_peak"] == COST["vector_bf16_peak"]


def test_a_constant_without_bounds_is_not_fitted() -> None:
    unbound = {**COST.constants, "vector_read": replace(COST.constants["vector_read"], low=None)}
    with pytest.raises(ValueError, match="vector_read is fitted and needs low and high"):
        fit_measured([], replace(COST, constants=unbound))


def test_nothing_is_fitted_without_a_cell_of_the_fitting_set() -> None:
    with pytest.raises(RequestError, match="no cell of the fitting set"):
        fit_measured([], COST)


def roof(gb_per_s: float, hop_ns: float = 30.0, **changes: Any) -> RoofSample:
    values: dict[str, Any] = {"peak_flops": 1e12, "peak_isa": "avx512", "ping_pong_ns": hop_ns} | changes
    return RoofSample(read_bytes_per_s=gb_per_s * 1e9, **values)


def turns(roofs: Sequence[RoofSample]) -> list[Record]:
    """The first record of a decode cell, once for each roof, sampled before and after it."""
    record = next(one for one in kept() if one.cell.spec.workload.phase == "decode").records[0]
    return [replace(record, roofs=(one, one), samples_s=(1.0,)) for one in roofs]


def test_a_cell_is_judged_by_the_roofs_of_its_usual_placement() -> None:
    spec, machine = kept()[0].cell.spec, testbed(gpu=None, domains=1)
    seen = measured_cell(spec, turns([roof(20), roof(30), roof(30), roof(99, hop_ns=150)]), machine)
    assert seen is not None and seen.spec.machine is not None
    assert seen.step_s == 1.0
    assert seen.spec.machine.read_gb_per_s == pytest.approx(30)
    assert seen.spec.machine.vector_tflops == pytest.approx(1)


def test_a_cell_that_outran_its_roofs_is_not_judged() -> None:
    spec, machine = kept()[0].cell.spec, testbed(gpu=None)
    assert measured_cell(spec, turns([roof(0.001)]), machine) is None
    assert measured_cell(spec, [], machine) is None


def test_a_moment_changes_what_was_sampled_and_nothing_else() -> None:
    machine = testbed(gpu=None)
    then = machine_at(machine, roof(220, peak_isa="amx", peak_dtype="int8", peak_flops=1e14))
    assert then.read_gb_per_s == 110.0 and then.remote_gb_per_s == pytest.approx(62.5)
    assert then.amx_int8_tops == 50.0 and then.amx_tflops == machine.amx_tflops
    assert machine_at(machine, roof(440, peak_isa="reference", peak_flops=None)) == machine


def test_a_run_tells_its_machine() -> None:
    machines = {one.run.parent.name: one.machine for one in kept()}
    granite, zen4 = machines["granite_rapids_2_cores"], machines["zen4_2_cores"]
    assert granite.cores == zen4.cores == 2 and zen4.amx_tflops is None
    assert granite.amx_tflops == pytest.approx(6.2, rel=0.1)
    assert median((granite.read_gb_per_s, zen4.read_gb_per_s)) == pytest.approx(33, rel=0.3)


def test_a_run_without_vector_roofs_has_no_machine() -> None:
    record = next(iter(read_run(RUNS[0]).records))
    with pytest.raises(ValueError, match="no roof of AVX-512 or AVX2"):
        recorded_machine(
            read_run(RUNS[0]).environments[0],
            [replace(record, roofs=(roof(10, peak_isa="reference", peak_flops=None),))],
        )
