"""Records of simulated cells."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.sim.records import simulate_cells, simulated
from ktbench.sim.sensitivity import resource_lines, sensitivity
from ktbench.sim.simulation import Simulation
from ktbench.sim.simulation import simulate as simulate_step
from ktbench.spec.record import Cell, Environment, Outcome, Record, RoofSample, Work
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Span, Timeline
from ktbench.spec.wire import spec_id
from tests.sim.testbed import cell_on, testbed

HERE = Environment(env_id="e", code_id="c")
MS = 1e-3
# Device, host and link, the host alone for 3 of 10 ms.
SPANS = (("device", 0, 3), ("host", 2, 6), ("link", 6, 7), ("device", 7, 10))


def cell(**engine: Any) -> Cell:
    spec = cell_on(testbed(), **({"device": "cuda"} | engine))
    return Cell(label=spec.label, spec=spec, spec_id=spec_id(spec))


def simulation(spec: RunSpec) -> Simulation:
    spans = tuple(
        Span(resource=where, name=where, kind="other", begin_s=begin * MS, end_s=end * MS)  # type: ignore[arg-type]
        for where, begin, end in SPANS
    )
    return Simulation(
        step_s=10 * MS,
        timeline=Timeline(title=spec.summary, spans=spans, step_s=10 * MS, provenance="simulated"),
        work=Work(weight_bytes=10, flops=20, tokens=1),
        counters={"avx512_calls": 7},
        roof=RoofSample(read_bytes_per_s=1e9, peak_flops=1e12, peak_isa="avx512"),
        shares={"host": 0.4},
        bottleneck="link",
        notes=("deferral=auto chose 2",),
        chosen={},
    )


class Simulator:
    """Stands for `simulate`: counts what it is asked, and refuses cells with +m."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, spec: RunSpec) -> Simulation:
        self.asked.append(spec.label)
        if spec.engine.amx:
            raise ValueError("no constants for AMX")
        return simulation(spec)


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    found = Simulator()
    monkeypatch.setattr("ktbench.sim.records.simulate", found)
    return found


def test_a_record_holds_the_simulation(simulate: Simulator) -> None:
    found = simulated(cell(), HERE)
    assert (found.outcome, found.provenance, found.round) == (Outcome.OK, "simulated", 0)
    assert found.samples_s == (10 * MS,)
    assert found.work == Work(weight_bytes=10, flops=20, tokens=1)
    assert found.roofs == (RoofSample(read_bytes_per_s=1e9, peak_flops=1e12, peak_isa="avx512"),)
    assert found.notes == ("deferral=auto chose 2", "bottleneck: link")
    assert {one.feature: one.seen for one in found.evidence if one.seen} == {"avx512": 7}
    assert found.error is None and found.took_s > 0
    assert (found.code_id, found.env_id) == ("c", "e")


@pytest.mark.parametrize(("phase", "says"), [("decode", True), ("prefill", True), ("layer", False)])
def test_few_cells_say_where_a_measured_speed_is_to_be_expected(
    simulate: Simulator, monkeypatch: pytest.MonkeyPatch, phase: str, says: bool
) -> None:
    monkeypatch.setattr("ktbench.sim.records.resource_lines", lambda found: ())
    one = cell()
    changes: dict[str, Any] = {"prompt": 1, "routing": "balanced"} if phase == "layer" else {"steps": 1}
    work = replace(one.spec.workload, phase=phase, **changes)  # type: ignore[arg-type]
    planned = replace(one, spec=replace(one.spec, workload=work))
    ends = [re.findall(r"[\d.,]+ to [\d.,]+ tokens/s", note) for note in simulated(planned, HERE, sensitive=True).notes]
    assert any(ends) is says
    assert not any("tokens/s" in note for note in simulated(planned, HERE).notes)


def test_role_times_exist_where_roles_are_apart(simulate: Simulator) -> None:
    roles = simulated(cell(), HERE).roles
    assert roles is not None
    assert roles.host_busy_s == pytest.approx(4 * MS)
    assert roles.device_wait_s == pytest.approx(3 * MS)
    assert roles.overlap_s == pytest.approx(1 * MS)
    assert simulated(cell(device="cpu"), HERE).roles is None


def test_a_host_that_never_works_alone_is_waited_for_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 - ((0.1 + 0.3) - 0.3) is below 0 in floating point, which no record takes."""
    host, device = (
        Span(resource=name, name=name, kind="other", begin_s=0.0, end_s=end_s)  # type: ignore[arg-type]
        for name, end_s in (("host", 0.1), ("device", 0.3))
    )

    def inside(spec: RunSpec) -> Simulation:
        return replace(simulation(spec), timeline=replace(simulation(spec).timeline, spans=(host, device)))

    monkeypatch.setattr("ktbench.sim.records.simulate", inside)
    found = simulated(cell(), HERE)
    assert found.outcome is Outcome.OK and found.roles is not None
    assert found.roles.device_wait_s == 0


def test_a_simulation_that_raises_is_unsupported_with_its_message(simulate: Simulator) -> None:
    found = simulated(cell(amx=True), HERE)
    assert (found.outcome, found.why, found.samples_s) == (Outcome.UNSUPPORTED, "no constants for AMX", ())
    assert found.provenance == "simulated"


def test_what_the_machine_lacks_is_not_simulated(simulate: Simulator) -> None:
    there, unsupported = cell(), cell(numa=True)
    found = list(simulate_cells((there, unsupported), {unsupported.key: "no domains"}, HERE, {}))
    assert [(record.cell, record.outcome) for record in found] == [
        (there.key, Outcome.OK),
        (unsupported.key, Outcome.UNSUPPORTED),
    ]
    assert found[1].why == "no domains"
    assert simulate.asked == ["+v+d"]


def test_a_resumed_run_keeps_its_simulated_records(simulate: Simulator) -> None:
    cells = (cell(), cell(amx=True))
    kept: dict[tuple[str, int], Record] = {(one.cell, one.round): one for one in simulate_cells(cells, {}, HERE, {})}
    simulate.asked.clear()
    assert list(simulate_cells(cells, {}, HERE, kept)) == []
    assert simulate.asked == ["+v+m+d"]
    mended = {key: replace(record, why="another reason") if record.why else record for key, record in kept.items()}
    assert [record.why for record in simulate_cells(cells, {}, HERE, mended)] == ["no constants for AMX"]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_cell_is_simulated_once(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """What more of each resource would give is asked of the seconds of a step, without its spans and counters."""
    asked: list[str] = []

    def counted(spec: RunSpec) -> Simulation:
        asked.append(spec.label)
        return simulate_step(spec)

    monkeypatch.setattr("ktbench.sim.records.simulate", counted)
    spec = cell_on(testbed(), phase=phase, device="cuda")
    one = Cell(label=spec.label, spec=spec, spec_id=spec_id(spec))
    found = simulated(one, HERE, sensitive=True)
    assert found.outcome is Outcome.OK and len(asked) == 1
    now_s, (sample_s,) = simulate_step(spec).step_s, found.samples_s
    assert sample_s == now_s
    assert set(resource_lines(sensitivity(spec))) <= set(found.notes)


def test_neither_catalogue_nor_fitting_is_loaded_where_cells_are_simulated() -> None:
    script = """
import sys
from ktbench import sim
from ktbench.spec.record import Cell, Environment
from tests.sim.real import real_cell
cell = Cell(label="one", spec=real_cell("qwen3_30b_a3b"), spec_id="one")
(record,) = sim.simulate_cells([cell], {}, Environment(env_id="e", code_id="c"), {})
assert any("90 % interval" in note for note in record.notes), record
loaded = [name for name in sys.modules if name.startswith(("ktbench.sim.judging", "ktbench.sim.advising"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
