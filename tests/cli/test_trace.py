"""The verb `trace`, its worker serving a scripted system."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ktbench.cli import trace
from ktbench.run.messages import OpenSession
from ktbench.run.worker import SERVE, OnLoading, Worker
from ktbench.spec.errors import RequestError

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests/run/fake_worker.py"
CELL = ["model=tiny", "model.layers=2", "workload.prompt=8", "workload.steps=2", "run_name=seen"]
Verb = Callable[..., int]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Exit code of `trace` with a system that goes by this script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    start = Worker.start

    def run(script: str, *words: str) -> int:
        def start_fake(
            opened: OpenSession, log: Path, timeout_s: float, command: Sequence[str], on_loading: OnLoading
        ) -> Worker:
            assert command == SERVE
            fake = (sys.executable, str(FAKE), json.dumps({"base": script}))
            return start(opened, log, timeout_s, fake, on_loading)

        monkeypatch.setattr(Worker, "start", start_fake)
        return trace.run([*CELL, *words])

    return run


def test_writes_the_trace_and_the_picture_and_names_them(traced: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert traced("") == 0
    said = capsys.readouterr().out
    names = ["trace.json", "timeline.pdf", "timeline.svg", "timeline.png"]
    assert [line.removeprefix("wrote runs/seen/") for line in said.splitlines() if line.startswith("wrote")] == names
    assert all((Path("runs/seen") / name).stat().st_size for name in names)
    assert "Of the step: host busy 67%; device busy 67%; host and device at once 33%." in said
    assert json.loads(Path("runs/seen/trace.json").read_text())["otherData"]["provenance"] == "measured"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("unsupported", "UNSUPPORTED: the fake engine has no such feature"),
        ("no timeline", "UNSUPPORTED: the fake engine keeps no time"),
        ("crash", "CRASHED: the trace: the worker was ended by SIGSEGV"),
        ("no_memory", "NO_MEMORY: the trace: could not allocate 1 PiB"),
    ],
)
def test_a_cell_that_does_not_end_well_is_exit_code_4_with_its_reason(
    traced: Verb, capsys: pytest.CaptureFixture[str], script: str, says: str
) -> None:
    assert traced(script) == 4
    assert says in capsys.readouterr().err
    assert not list(Path("runs/seen").glob("t*"))


def test_a_cell_that_cannot_run_here_loads_nothing(traced: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert traced("", "workload=layer", "workload.prompt=1", "precision=int8", "engine.skipping=1") == 4
    assert "UNSUPPORTED: workload.phase=layer" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweep.arms=[base]"], "trace: takes one cell"),
        (["resume=first"], "trace: resume=first"),
        (["workload.steps=0"], "workload.steps=0: must be at least 1"),
        (["engine.vv=true"], "engine.vv: unknown key"),
    ],
)
def test_bad_input_is_refused_before_anything_loads(traced: Verb, words: list[str], says: str) -> None:
    with pytest.raises(RequestError, match=says.replace("[", r"\[")):
        traced("", *words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["trace.json", "log.jsonl", "notes.txt"])
def test_a_folder_that_is_there_is_not_written_into(traced: Verb, name: str) -> None:
    Path("runs/seen").mkdir(parents=True)
    Path("runs/seen", name).touch()
    with pytest.raises(RequestError, match="run_name=seen: runs/seen"):
        traced("")


def test_a_trace_that_came_to_no_end_is_made_by_the_same_command(traced: Verb) -> None:
    Path("runs/seen").mkdir(parents=True)
    for name in ("worker.log", "timeline.pdf", ".trace.json.part"):
        Path("runs/seen", name).write_text("half")
    assert traced("") == 0
    assert json.loads(Path("runs/seen/trace.json").read_text())


def test_a_peer_has_no_roles_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.run(["model=tiny", "system=transformers"]) == 4
    assert "trace: UNSUPPORTED: transformers" in capsys.readouterr().err
