"""What a report says of the machine's health, of energy and of memory, and of runs that recorded none of it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from ktbench.core.conduct import Conduct, Disturbance, Energy, PeakMemory
from ktbench.core.plain import from_plain, to_plain
from ktbench.core.record import Environment, Record
from ktbench.report.data import csv_text, json_text
from ktbench.report.health import disturbed_rounds, machine_warnings, roof_warnings, unreadable_sentence
from ktbench.report.markdown import markdown
from ktbench.report.rows import rows_of
from ktbench.report.tables import Table, table_of
from ktbench.store import Run
from tests.report.synthetic import DECODE, MACHINE, Store

CALM = Disturbance(seconds=1.0, cpus=2, preemptions=3, minor_faults=0, major_faults=0, others_s=0.0, clock_hz=3e9)
GIB = 2**30
WHY = "processors: no RAPL in /sys/class/powercap"


def conduct(**changes: Any) -> Conduct:
    memory = PeakMemory(process_bytes=5 * GIB, of_turn=True, node_bytes={"node 0": 4 * GIB, "node 1": GIB})
    return replace(Conduct(disturbance=CALM, memory=memory, missing={"energy": WHY}), **changes)


def watched(run: Run, **by_label: Conduct) -> Run:
    """The run as if somebody had watched its turns; cells that are not named were calm."""
    records = tuple(replace(one, conduct=by_label.get(one.label, conduct())) for one in run.records)
    return replace(run, records=records)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Store(arms=DECODE[:2], rounds=6, drift=0.0).write(tmp_path_factory.mktemp("runs"))


def table(run: Run) -> Table:
    return table_of(run, rows_of(run))


def lines(run: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(run, rows_of(run)))))


def described(run: Run, *facts: dict[str, Any]) -> Run:
    sittings = (Environment(env_id=MACHINE.env_id, code_id="", facts=MACHINE.facts | one) for one in facts)
    return replace(run, environments=tuple(sittings))


def test_a_run_that_recorded_nothing_has_no_new_sentence_and_no_new_column(run: Run) -> None:
    text = markdown(table(run))
    assert not any(word in text for word in ("Warning", "Energy", "Peak memory", "Not to be read", "J/token"))
    assert lines(run)[0]["joules_per_token"] == lines(run)[0]["peak_memory_bytes"] == lines(run)[0]["disturbed"] == ""
    assert "energy: nobody read a meter around these steps" in lines(run)[0]["missing"]


def test_records_without_conduct_still_read(run: Run) -> None:
    old = to_plain(run.records[0])
    del old["conduct"]
    assert from_plain(old, Record) == run.records[0]


def test_each_bad_setting_of_any_sitting_is_one_warning(run: Run) -> None:
    found = described(run, {"governor": "powersave", "thp": "never"}, {"governor": "powersave", "load": 9.0})
    assert machine_warnings(found) == (
        "Warning: cpu governor powersave; clocks rise late and drop between steps.",
        "Warning: transparent huge pages are off; reads of weights miss the TLB.",
        "Warning: load 9.0 is above the 2 usable cores; threads wait for a core.",
    )
    assert {*machine_warnings(found)} <= {*table(found).conditions}


def test_what_cannot_be_read_is_said_once_for_each_reason(run: Run) -> None:
    found = described(run, {"missing": {"governor": "no cpufreq", "heat": "no counters", "clock": "no cpufreq"}})
    assert unreadable_sentence(found) == "Not to be read here: governor, clock (no cpufreq); heat (no counters)."
    assert unreadable_sentence(run) == ""


def test_disturbed_turns_are_one_line_for_each_thing_with_the_cells_affected(run: Run) -> None:
    busy = conduct(disturbance=replace(CALM, others_s=0.2))
    stolen = conduct(disturbance=replace(CALM, stolen_s=0.5))
    found = watched(run, **{"base": busy, "+v": stolen})
    notes = [note for note in table(found).notes if "at worst" in note]
    assert notes == [
        "base in 6 of 6 turns — others' work: at worst 10.0% of the cpus' time went to other programs; they took "
        "cores, caches and memory bandwidth",
        "+v in 6 of 6 turns — stolen time: at worst 25.0% of the cpus' time was given to other machines by the "
        "hypervisor; steps stopped while another machine ran",
    ]
    assert lines(found)[0]["disturbed"] == "others' work: rounds 0 1 2 3 4 5"
    content = json.loads(json_text(found, rows_of(found), table(found)))
    assert content["rows"][1]["disturbed"] == {"stolen time": [0, 1, 2, 3, 4, 5]}


def test_a_clock_is_held_against_the_other_turns_of_its_row(run: Run) -> None:
    found = watched(run)
    slow = conduct(disturbance=replace(CALM, clock_hz=2.4e9))
    records = tuple(replace(r, conduct=slow) if (r.label, r.round) == ("+v", 4) else r for r in found.records)
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
    assert base.energy is not None and other.energy is None
    assert (base.energy.joules_per_token.mid, base.energy.watts.mid) == (2.0, 16.0)  # four steps of one token
    headings = [column.heading for column in table(found).columns]
    at = headings.index("energy (J/token)")
    assert [cells[at : at + 2] for cells in table(found).cells] == [("2.000 [2.000, 2.000]", "16.0"), ("—", "—")]
    (said,) = (sentence for sentence in table(found).conditions if sentence.startswith("Energy"))
    assert said.startswith("Energy: package-0, dram-0 together")
    assert said.endswith(f"Not in it: {WHY}.")


def test_memory_is_said_once_where_it_is_the_same_and_a_column_where_not(run: Run) -> None:
    found = watched(run)
    said = "Peak memory of the worker during a turn: 5.0 GiB, by place at most node 0 4.0 GiB, node 1 1.0 GiB."
    assert said in table(found).conditions
    assert lines(found)[0]["peak_memory_by_place"] == f"node 0: {4 * GIB}; node 1: {GIB}"
    larger = conduct(memory=PeakMemory(process_bytes=8 * GIB, of_turn=False))
    varied = table(watched(run, base=larger))
    at = [column.heading for column in varied.columns].index("peak memory (GiB)")
    assert [cells[at] for cells in varied.cells] == ["8.0", "5.0"]
    assert any("since it began: 5.0 to 8.0 GiB" in sentence for sentence in varied.conditions)
