"""The day on a GPU machine: its command lines are valid there, what ended is not repeated, what there is is kept."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import torch

from ktbench.cli import VERBS
from ktbench.cli import main as ktbench
from ktbench.host.capabilities import feature_reasons
from ktbench.run.feasibility import Machine, feasibility
from ktbench.run.request import cells_of, one_cell_request, read_request
from ktbench.spec.record import Cell
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.memory import MachineMemory
from tests.drawing import few_of
from tests.gpu import day, facts, handover, profile_step
from tests.gpu.day import Call, main, pack, run
from tests.gpu.stages import PARTS, ROOT, Plan, Stage
from tests.tiny import tiny_spec

PROFILE = profile_step.__name__
NO_DEVICE = "no CUDA device: this machine has none"
# Stages of a dry call, of seconds each.
DRY = ("facts", "device", "handover", "profile")
ALL = dict.fromkeys(("avx2", "avx512", "amx", "numa", "cuda", "stream_memory"), "")
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


def every(plan: Plan) -> list[Stage]:
    return [one for part in PARTS for one in plan.stages(part)]


def module_of(stage: Stage) -> tuple[str, list[str]]:
    """What Python runs, and its words; a program that is not Python has none."""
    _, flag, module, *words = stage.command
    return (module, words) if flag == "-m" else ("", [])


def asked(stage: Stage) -> tuple[str, list[str]] | None:
    """The verb and the overrides of a command that measures cells."""
    module, words = module_of(stage)
    if module == PROFILE:
        return "profile_step", words
    if module == "ktbench" and words[0] in ("sweep", "trace"):
        return words[0], [word.replace("resume=", "run_name=") for word in words[1:]]
    return None


def measuring(plan: Plan) -> list[Stage]:
    return [one for one in every(plan) if asked(one) is not None]


def cells_in(stage: Stage) -> list[Cell]:
    """What the command would measure. Raises RequestError where it is not valid."""
    verb, words = asked(stage) or ("", [])
    request = read_request(words) if verb == "sweep" else one_cell_request(verb, words)
    return [cell for cell in cells_of(request) if cell.role == "arm"]


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
    )
    for one in measuring(plans()[name]):
        reasons = [feasibility(cell.spec, machine) for cell in cells_in(one)]
        assert reasons.count(None) >= (1 if one.run is None else 2), one.name
        for reason in filter(None, reasons):
            of_this_host = reason.where == "system=fiddler"  # peers are looked for where the test runs
            assert of_this_host or reason.where in ("+n", "+m", "+c"), f"{one.name}: {reason}"


@pytest.mark.parametrize("name", few_of(MACHINES, {"avx2"}))
def test_a_dry_run_asks_for_no_device_and_its_commands_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.run.request.machine_capabilities", lambda: MACHINES[name])
    for one in measuring(plans(dry=True)[name]):
        assert {cell.spec.engine.device for cell in cells_in(one)} == {"cpu"}


@pytest.fixture(params=few_of(MACHINES, {"avx512"}))
def without_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine like those, but for the device."""
    missing = MACHINES[request.param] | {"cuda": NO_DEVICE}
    for module in ("request", "feasibility"):
        monkeypatch.setattr(f"ktbench.run.{module}.machine_capabilities", lambda: missing)
    memory = MachineMemory(free_bytes=128 << 30, total_bytes=128 << 30, cache_bytes=32 << 20)
    monkeypatch.setattr("ktbench.run.request._machine_memory", lambda: memory)
    return str(request.param)


def test_without_a_device_every_command_that_measures_lacks_it_and_nothing_else(
    without_device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key, a value or an ablation that is wrong would be told first."""
    for one in measuring(plans()[without_device]):
        _, words = asked(one) or ("", [])
        on_device = {cell.spec.engine.device for cell in cells_in(one)} == {"cuda"}
        ended, told = ktbench(["plan", *words]), capsys.readouterr()
        if on_device:
            assert (ended, told.out) == (2, ""), one.name
            assert told.err.startswith(f"ktbench: engine.device=cuda: {NO_DEVICE}"), one.name
        else:
            assert (ended, told.err) == (0, ""), one.name


def test_what_other_commands_run_is_there() -> None:
    for one in (one for plan in plans().values() for one in every(plan)):
        module, words = module_of(one)
        if module == "ktbench":
            assert words[0] in VERBS
        elif module == "pytest":
            assert Path(words[0]).exists()
        else:
            assert find_spec(module) if module else which(one.command[0])


class Collected:
    """A plugin that keeps what a session collects."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


@pytest.mark.parametrize("name", ["tests_gpu", "tests_amx"])
def test_stages_that_select_tests_find_some(name: str) -> None:
    (one,) = (one for one in every(Plan(amx=True)) if one.name == name)
    _, words = module_of(one)
    collected = Collected()
    assert pytest.main([*words, "--collect-only", "-q"], plugins=[collected]) == pytest.ExitCode.OK
    assert collected.items


class Spinning:
    """A system whose steps multiply."""

    def __init__(self) -> None:
        self.steps = 0

    def configure(self, _spec: RunSpec) -> None:
        self.steps = 0

    def start(self) -> None:
        pass

    def step(self) -> None:
        self.steps += 1
        torch.ones(8, 8) @ torch.ones(8, 8)

    def notes(self) -> tuple[str, ...]:
        return ("a note",)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_is_profiled_on_either_device(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile_step.profiled(Spinning(), tiny_spec(device=device, avx2=True), tmp_path)  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert "a note" in told and "aten::mm" in told
    (trace,) = tmp_path.iterdir()
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_names_are_unique_and_amx_is_measured_where_it_is_granted() -> None:
    for name, plan in plans().items():
        stages = every(plan)
        assert len({one.name for one in stages}) == len(stages)
        assert any(one.name == "tests_amx" for one in stages) == (name == "amx")


def by_nox(words: list[str]) -> None:
    pytest.importorskip("nox", reason="nox is not installed")
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", "gpu", "--", *words]
    python_first = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, check=True, env=os.environ | {"PATH": python_first}, timeout=280)


def in_this_process(words: list[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(day, "machine_facts", lambda _call: facts.machine())
        try:
            assert main(words) == 0
        finally:
            signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("call_of", "stages"),
    [(in_this_process, ("facts",)), pytest.param(by_nox, DRY, marks=pytest.mark.thorough)],
)
def test_a_dry_call_ends_well_and_says_where_it_ran(
    call_of: Callable[[list[str]], None], stages: Sequence[str], tmp_path: Path
) -> None:
    """On the machine that this is."""
    call_of(["first", "--dry-run", "--only", *stages, "--out", str(tmp_path)])
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    told = json.loads((folder / "call.json").read_text())
    assert told["machine"]["commit"] or told["machine"]["code_id"]
    assert {one["name"]: one["how"] for one in told["stages"]} == dict.fromkeys(stages, "ok")
    if "handover" in stages:
        assert "hand-over by flags" in (folder / "logs" / "handover.log").read_text()
    if "profile" in stages:
        assert "ms a step" in (folder / "logs" / "profile.log").read_text()
        assert [*folder.glob("profile_*.json.gz")]


def test_a_dry_hand_over_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    handover.main(["--dry-run", "--layers", "4"])
    assert "hand-over by flags" in capsys.readouterr().out


def test_what_is_carried_is_for_the_python_of_the_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append([*command]))
    assert main(["prepare", "--python", "3.99"]) == 0
    (fetched, _built) = ran
    assert fetched[fetched.index("--python-version") + 1] == "3.99"
    assert {"msgspec", "gguf"} <= {*fetched}


@pytest.mark.parametrize("words", [["fifth"], ["first", "--limit", "900"], ["first", "--limit", "soon"], []])
def test_arguments_that_are_wrong_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
