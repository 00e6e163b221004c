"""The day on a GPU machine: its command lines are valid there, what ended is not repeated, what there is is kept."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path

import pytest

from ktbench.host.capabilities import feature_reasons
from ktbench.run.feasibility import Machine, feasibility
from ktbench.run.request import cells_of, one_cell_request, read_request
from ktbench.spec.record import Cell
from tests.gpu.day import Call, main, pack, run
from tests.gpu.stages import PARTS, Plan, Stage

ALL = dict.fromkeys(("avx2", "avx512", "amx", "numa", "cuda"), "")
ONE_NODE = ALL | {"numa": "one NUMA node"}
MACHINES = {
    "amx": ONE_NODE,
    "avx512": ONE_NODE | {"amx": "no AMX"},
    "avx2": ONE_NODE | {"amx": "no AMX", "avx512": "no AVX-512"},
}


@pytest.fixture
def call(tmp_path: Path) -> Call:
    return Call.open(tmp_path / "call", 60, {})


def stage(name: str, code: str, most_s: int = 30, sweep: str | None = None) -> Stage:
    return Stage(name=name, command=(sys.executable, "-c", code), most_s=most_s, run=sweep)


def test_what_ended_is_not_repeated_and_what_failed_is(call: Call) -> None:
    stages = [stage("good", "open('count', 'a').write('x')"), stage("bad", "open('count', 'a').write('x'); 1 / 0")]
    assert run(call, stages) == ["bad"]
    again = Call.open(call.folder, 60, {})
    assert run(again, stages) == ["bad"]
    assert (call.folder / "count").read_text() == "xxx"


def test_a_failed_stage_does_not_keep_others_from_running(call: Call) -> None:
    missing = Stage(name="missing", command=("no-such-program",), most_s=5)
    assert run(call, [missing, stage("bad", "raise SystemExit(3)"), stage("good", "print('ran')")]) == [
        "missing",
        "bad",
    ]
    told = {one["name"]: one for one in json.loads((call.folder / "call.json").read_text())["stages"]}
    assert {name: (one["how"], one["code"]) for name, one in told.items()} == {
        "missing": ("failed", None),
        "bad": ("failed", 3),
        "good": ("ok", 0),
    }


def test_a_sweep_with_cells_in_doubt_ended(call: Call) -> None:
    assert run(call, [stage("sweep", "raise SystemExit(4)", sweep="sweep")]) == []
    assert run(call, [stage("test", "raise SystemExit(4)")]) == ["test"]


def test_a_stage_whose_time_is_over_is_asked_to_end(call: Call) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(print('records are kept')))\n"
    slow = stage("slow", f"{code}while True: time.sleep(0.05)", most_s=1)
    assert run(call, [slow]) == ["slow"]
    assert "records are kept" in (call.folder / "logs" / "slow.log").read_text()
    assert call.ended[0].how == "out of time"


def test_without_time_nothing_begins(call: Call) -> None:
    call.began = time.monotonic() - call.limit_s
    assert run(call, [stage("late", "1")]) == ["late"]
    assert call.ended[0].how == "no time" and not (call.folder / "logs").exists()


def test_the_archive_is_whole_after_every_stage(call: Call) -> None:
    run(call, [stage("one", "open('large.npz', 'w'); print('seen')"), stage("two", "raise SystemExit(1)")])
    with tarfile.open(call.folder.with_suffix(".tar.gz")) as packed:
        names = packed.getnames()
    assert {"call/call.json", "call/logs/one.log", "call/logs/two.log"} == set(names)
    assert pack(call).is_file()


def plans(**others: object) -> dict[str, Plan]:
    return {name: Plan.of(missing, **others) for name, missing in MACHINES.items()}


def cells_in(stage: Stage) -> list[Cell]:
    """What the command would measure. Raises RequestError where it is not valid."""
    _, _, _, verb, *words = stage.command
    words = [word.replace("resume=", "run_name=") for word in words]
    request = read_request(words) if verb == "sweep" else one_cell_request(verb, words)
    return [cell for cell in cells_of(request) if cell.role == "arm"]


def measuring(plan: Plan) -> list[Stage]:
    stages = [one for part in PARTS for one in plan.stages(part)]
    return [one for one in stages if one.command[1:3] == ("-m", "ktbench") and one.command[3] in ("sweep", "trace")]


@pytest.mark.parametrize("name", MACHINES)
def test_every_command_is_valid_on_the_machine_and_measures_something(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot run there says so for lack of NUMA nodes, AMX, or a graph in prefill alone."""
    missing = MACHINES[name]
    monkeypatch.setattr("ktbench.run.request.machine_capabilities", lambda: missing)
    machine = Machine(
        cpus=range(16),
        no_cuda="",
        features_missing=feature_reasons(missing),
        gpu_bytes=80 << 30,
        flags=True,
    )
    for one in measuring(plans()[name]):
        reasons = [feasibility(cell.spec, machine) for cell in cells_in(one)]
        assert reasons.count(None) >= (1 if one.run is None else 2), one.name
        for reason in filter(None, reasons):
            of_this_host = reason.where == "system=fiddler"  # peers are looked for where the test runs
            assert of_this_host or reason.where in ("+n", "+m", "+c"), f"{one.name}: {reason}"


@pytest.mark.parametrize("name", MACHINES)
def test_a_dry_run_asks_for_no_device_and_its_commands_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.run.request.machine_capabilities", lambda: MACHINES[name])
    for one in measuring(plans(dry=True)[name]):
        assert {cell.spec.engine.device for cell in cells_in(one)} == {"cpu"}


def test_names_are_unique_and_amx_is_measured_where_it_is_granted() -> None:
    for name, plan in plans().items():
        stages = [one for part in PARTS for one in plan.stages(part)]
        assert len({one.name for one in stages}) == len(stages)
        assert any(one.name == "tests_amx" for one in stages) == (name == "amx")


def test_a_dry_call_ends_well_and_says_where_it_ran(tmp_path: Path) -> None:
    words = ["first", "--dry-run", "--only", "facts", "handover", "--out", str(tmp_path)]
    assert main(words) == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    told = json.loads((folder / "call.json").read_text())
    assert told["machine"]["commit"] or told["machine"]["code_id"]
    assert [one["how"] for one in told["stages"]] == ["ok", "ok"]
    assert "hand-over by flags" in (folder / "logs" / "handover.log").read_text()


@pytest.mark.parametrize("words", [["fourth"], ["first", "--limit", "900"], ["first", "--limit", "soon"], []])
def test_arguments_that_are_wrong_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
