"""What a report says of the machine's health, of energy and of memory, and of runs that recorded none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktbench.report.health import (
    machine_warnings,
    roof_warnings,
    trial_warnings,
    unreadable_sentence,
)
from ktbench.report.markdown import markdown
from ktbench.report.web.warnings import warnings_of, warnings_of_run
from ktbench.results import Run
from ktbench.results.quantities.disturbances import disturbed_rounds
from ktbench.results.rows import rows_of
from ktbench.results.usage import are_alike
from ktbench.spec.record import Environment, Outcome, Record
from ktbench.spec.system_metrics import READ_BUFFER_BYTES, Energy, InterferenceCounters, PeakMemory, SystemMetrics
from ktbench.spec.wire import from_wire, to_wire
from tests.report.reading import column, csv_of_run, headings, json_of_run, table
from tests.report.simulated_runs import simulated
from tests.report.synthetic import DECODE, MACHINE, Store

CALM = InterferenceCounters(
    seconds=1.0, cpus=2, preemptions=3, minor_faults=0, major_faults=0, others_s=0.0, clock_hz=3e9
)
GIB = 2**30
WHY = "processors: no RAPL in /sys/class/powercap"


def conduct(**changes: Any) -> SystemMetrics:
    memory = PeakMemory(process_bytes=5 * GIB, of_turn=True, node_bytes={"node 0": 4 * GIB, "node 1": GIB})
    return replace(SystemMetrics(disturbance=CALM, memory=memory, missing={"energy": WHY}), **changes)


def watched(run: Run, **by_label: SystemMetrics) -> Run:
    """The run as if somebody had watched its turns; cells that are not named were calm."""
    records = tuple(replace(one, system_metrics=by_label.get(one.label, conduct())) for one in run.records)
    return replace(run, records=records)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Store(arms=DECODE[:2], rounds=6, drift=0.0).write(tmp_path_factory.mktemp("runs"))


def described(run: Run, *facts: dict[str, Any]) -> Run:
    sittings = (Environment(env_id=MACHINE.env_id, code_id="", facts=MACHINE.facts | one) for one in facts)
    return replace(run, environments=tuple(sittings))


def test_a_run_that_recorded_nothing_has_no_new_sentence_and_no_new_column(run: Run) -> None:
    text = markdown(table(run))
    assert not any(word in text for word in ("Warning", "Energy", "Peak memory", "Not readable", "J/token"))
    first, *_ = csv_of_run(run)
    assert first["joules_per_token"] == first["peak_memory_bytes"] == first["disturbed_rounds"] == ""
    assert "energy: no energy meter was read during these steps" in first["missing"]


def test_records_without_conduct_still_read(run: Run) -> None:
    old = to_wire(run.records[0])
    del old["conduct"]
    assert from_wire(old, Record) == run.records[0]


def on_a_node(run: Run, **facts: Any) -> Run:
    """The run as if its turns had been taken by a node, and the planner had not been described."""
    node = Environment(env_id="abcdefabcdef", code_id="0123456789ab", facts=MACHINE.facts | facts)
    records = tuple(replace(one, env_id=node.env_id, code_id=node.code_id) for one in run.records)
    return replace(run, environments=(node,), records=records)


def test_health_is_that_of_the_nodes_that_measured(run: Run) -> None:
    missing = {"heat": "no counters"}
    found = on_a_node(run, governor="powersave", thp="never", missing=missing)
    assert [one.partition(";")[0] for one in machine_warnings(found)] == [
        "Warning: cpu governor powersave",
        "Warning: transparent huge pages are off",
    ]
    assert {*machine_warnings(found)} <= {*warnings_of_run(found)}
    assert unreadable_sentence(found) == "Not readable here: heat (no counters)."
    (described,) = json_of_run(found)["environments"]
    assert (described["env_id"], described["facts"]["governor"]) == ("abcdefabcdef", "powersave")


def test_a_planner_that_did_not_measure_is_neither_judged_nor_counted(run: Run) -> None:
    node = on_a_node(run)
    planner = replace(MACHINE, facts=MACHINE.facts | {"governor": "powersave"})
    lost = replace(run.records[0], round=9, outcome=Outcome.CRASHED, samples_s=(), why="its node has failed")
    found = replace(node, environments=(planner, *node.environments), records=(*node.records, lost))
    assert machine_warnings(found) == ()
    assert warnings_of_run(found) == ()
    both = replace(found, records=(*run.records[:6], *node.records[6:]))
    assert [one for one in warnings_of_run(both) if one.startswith("Trials")] == [
        f"Trials ran 2 versions of the code: {MACHINE.code_id}, 0123456789ab.",
        f"Trials ran on 2 machines: {MACHINE.env_id}, abcdefabcdef.",
    ]
    assert any("governor powersave" in one for one in warnings_of_run(both))


def test_what_is_all_simulated_has_no_machine_to_distrust(run: Run) -> None:
    found = described(simulated(run), {"governor": "powersave"})
    assert warnings_of_run(found) == ()
    assert any("governor powersave" in one for one in warnings_of_run(described(run, {"governor": "powersave"})))


def test_what_cannot_be_read_on_some_nodes_alone_names_them(run: Run) -> None:
    node = on_a_node(run, missing={"heat": "no counters"})
    both = replace(node, environments=(MACHINE, *node.environments), records=(*run.records[:6], *node.records[6:]))
    assert unreadable_sentence(both) == "Not readable on abcdefabcdef: heat (no counters)."
    alike = [replace(one, facts=one.facts | {"missing": {"heat": "no counters"}}) for one in both.environments]
    assert unreadable_sentence(replace(both, environments=tuple(alike))) == "Not readable here: heat (no counters)."


def test_disturbed_turns_are_one_line_for_each_thing_with_the_cells_affected(run: Run) -> None:
    busy = conduct(disturbance=replace(CALM, others_s=0.2))
    stolen = conduct(disturbance=replace(CALM, stolen_s=0.5))
    found = watched(run, **{"base": busy, "+v": stolen})
    rounds = (0, 1, 2, 3, 4, 5)
    assert [disturbed_rounds(one) for one in rows_of(found)[:2]] == [{"others' work": rounds}, {"stolen time": rounds}]
    assert csv_of_run(found)[0]["disturbed_rounds"] == "6"
    assert json_of_run(found)["rows"][1]["disturbed"] == {"stolen time": [*rounds]}


def test_an_arm_at_several_points_is_one_cell_with_all_its_turns(tmp_path: Path) -> None:
    found = watched(Store(arms=DECODE[:1], prompts=(64, 128), rounds=6, control=False).write(tmp_path))
    first, second = (cell.key for cell in found.header.cells)
    half, little = (conduct(disturbance=replace(CALM, others_s=2 * share)) for share in (0.5, 0.05))
    busy = {**{(first, number): half for number in range(6)}, (second, 3): little}
    records = tuple(
        replace(one, system_metrics=busy.get((one.cell, one.round), one.system_metrics)) for one in found.records
    )
    said = [doubt for doubt in warnings_of(rows_of(replace(found, records=records))) if "at worst" in doubt]
    assert len(said) == 1
    assert said[0].startswith("base in 7 of 12 trials — others' work: at worst, in 1.0 s of steps, 50.0% of")


@pytest.mark.parametrize(
    ("long", "short", "worst"),
    [
        ({"others_s": 2.0}, {"others_s": 0.8}, "in 1.0 s of steps, 40.0% of the cpus' time"),
        ({"preemptions": 3000}, {"preemptions": 900}, "in 1.0 s of steps, 900 involuntary context switches"),
    ],
)
def test_the_worst_turn_is_not_the_longest(run: Run, long: dict[str, Any], short: dict[str, Any], worst: str) -> None:
    slow, fast = (conduct(disturbance=replace(CALM, seconds=s, **more)) for s, more in ((10.0, long), (1.0, short)))
    rows = rows_of(watched(run, **{"base": slow, "+v": fast}))
    (said,) = trial_warnings(rows, lambda row: row.shown)
    assert f"at worst, {worst}" in said


def test_a_clock_is_held_against_the_other_turns_of_its_row(run: Run) -> None:
    found = watched(run)
    slow = conduct(disturbance=replace(CALM, clock_hz=2.4e9))
    records = tuple(replace(r, system_metrics=slow) if (r.label, r.round) == ("+v", 4) else r for r in found.records)
    rows = rows_of(replace(found, records=records))
    assert [disturbed_rounds(row) for row in rows] == [{}, {"clock": (4,)}, {}]


def test_roofs_that_moved_name_their_rounds(run: Run) -> None:
    def slower(record: Record) -> Record:
        share = 0.7 if record.round in (2, 5) else 1.0
        return replace(
            record, roofs=tuple(replace(r, read_bytes_per_s=share * r.read_bytes_per_s) for r in record.roofs)
        )

    moved = replace(run, records=tuple(map(slower, run.records)))
    (said,) = roof_warnings(rows_of(moved))
    assert "read bandwidth was 19.7 to 19.9 GB/s in rounds 2, 5, more than 15% off its median of 28" in said
    assert said in table(moved).conditions
    assert roof_warnings(rows_of(run)) == ()


def test_energy_that_cannot_be_read_is_a_dash_with_its_reason_once(run: Run) -> None:
    text = markdown(table(watched(run)))
    assert text.count(WHY) == 1
    assert f"- Energy: — ({WHY}).\n" in text
    assert "J/token" not in text


def test_energy_is_joules_a_token_and_watts_over_rounds(run: Run) -> None:
    energy = Energy(joules={"package-0": 6.0, "dram-0": 2.0, "psys": 20.0}, seconds=0.5)
    found = watched(run, base=conduct(energy=energy, missing={}))
    base, other, _ = rows_of(found)
    assert "watts" not in other.values
    assert (base.values["joules_per_token"].mid, base.values["watts"].mid) == (2.0, 16.0)  # four steps of one token
    assert column(table(found), "energy (J/token)") == ["2.000 [2.000, 2.000]", "—"]


def test_rows_of_different_meters_are_named_and_rounds_of_different_meters_are_no_number(run: Run) -> None:
    gpu = Energy(joules={"gpu-0": 4.0}, seconds=1.5)
    both = Energy(joules={"package-0": 6.0, "gpu-0": 4.0}, seconds=1.5)
    found = watched(run, **{"base": conduct(energy=gpu, missing={}), "+v": conduct(energy=both, missing={})})
    (said,) = (sentence for sentence in table(found).conditions if sentence.startswith("Energy"))
    assert said.startswith(
        "Energy: gpu-0 (base) and package-0, gpu-0 together (+v), not to be compared with each other, read around"
    )
    assert [line["meters"] for line in csv_of_run(found)] == ["gpu-0", "package-0 | gpu-0", ""]

    mixed = tuple(
        replace(one, system_metrics=conduct(energy=gpu, missing={})) if (one.label, one.round) == ("+v", 2) else one
        for one in found.records
    )
    base, other, _ = rows_of(replace(found, records=mixed))
    assert "watts" in base.values and "watts" not in other.values
    assert other.missing["energy"] == "rounds were read by different meters: package-0 + gpu-0, gpu-0"


def test_the_energy_of_a_moment_is_not_read_off_the_counter_of_a_gpu(run: Run) -> None:
    brief = Energy(joules={"package-0": 6.0, "gpu-0": 4.0}, seconds=0.9)
    row = next(iter(rows_of(watched(run, base=conduct(energy=brief, missing={})))))
    assert "watts" not in row.values
    assert "workload.steps" in row.missing["energy"]


def test_memory_is_said_once_where_it_is_the_same_and_a_column_where_not(run: Run) -> None:
    found = watched(run)
    first = csv_of_run(found)[0]
    assert (first["peak_memory_node_0_bytes"], first["peak_memory_node_1_bytes"]) == (str(4 * GIB), str(GIB))
    assert "peak memory (GiB)" not in headings(table(found))
    larger = conduct(memory=PeakMemory(process_bytes=8 * GIB, of_turn=False))
    assert column(table(watched(run, base=larger)), "peak memory (GiB)") == ["8.0", "5.0"]


def test_the_buffer_of_the_read_roof_hides_no_difference_between_small_cells() -> None:
    small, twice, same = (
        PeakMemory(process_bytes=READ_BUFFER_BYTES + own, of_turn=True) for own in (40 << 20, 80 << 20, 42 << 20)
    )
    assert twice.process_bytes < 1.1 * small.process_bytes
    assert not are_alike([small, twice])
    assert are_alike([small, same])
