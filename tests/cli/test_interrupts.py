"""Real sweeps of the real engine, interrupted and gone on with; tests/faults has other signals and moments."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.results import read_run
from tests.command import KTBENCH, at_home

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("loaded_children")
ARMS = "sweep.arms=['base','skipping=1','deferral=1']"
ROUNDS = 2
QUICK = ("model=tiny", "engine.threads=1", "workload.prompt=8", "workload.steps=2", "measure.min_rounds=1")
SWEEP = ("sweep", ARMS, *QUICK, f"measure.max_rounds={ROUNDS}")


def started(folder: Path) -> subprocess.Popen[str]:
    words = [*KTBENCH, *SWEEP, "run_name=ended"]
    return subprocess.Popen(words, cwd=folder, env=at_home(folder), stderr=subprocess.PIPE, text=True)


def wait_for_records(folder: Path, count: int, sweep: subprocess.Popen[str]) -> None:
    log = folder / "runs/ended/log.jsonl"
    while not log.exists() or log.read_bytes().count(b'"kind":"record"') < count:
        assert sweep.poll() is None, sweep.stderr and sweep.stderr.read()
        time.sleep(0.02)


def test_what_was_measured_is_kept_and_the_rest_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = started(tmp_path)
    wait_for_records(tmp_path, 5, sweep)
    sweep.send_signal(signal.SIGINT)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    kept = read_run(tmp_path / "runs/ended").records
    assert said.splitlines()[-1].endswith("the same command with resume=ended continues")
    monkeypatch.chdir(tmp_path)
    assert main([*SWEEP, "resume=ended"]) == 0
    run = read_run(tmp_path / "runs/ended")
    assert run.records[: len(kept)] == kept
    turns = [(record.cell, record.round) for record in run.records]
    assert len(turns) == len(set(turns)) == ROUNDS * len(run.header.cells)


def test_an_interrupt_while_weights_are_loaded_ends_with_its_code(tmp_path: Path) -> None:
    sweep = started(tmp_path)
    assert sweep.stderr is not None
    assert any(line.startswith("loading ") for line in sweep.stderr)
    sweep.send_signal(signal.SIGINT)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].endswith("resume=ended continues")
