"""Real sweeps of the real engine, ended from outside and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ktbench.results import read_run
from tests.command import KTBENCH

ROOT = Path(__file__).parents[2]
pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
ARMS = "sweep.arms=['base','skipping=1','deferral=1']"
QUICK = ("model=tiny", "workload.prompt=8", "workload.steps=2", "measure.max_rounds=6")


def command(*words: str) -> list[str]:
    return [*KTBENCH, "sweep", ARMS, *QUICK, *words]


def surroundings(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(folder)}


def started(folder: Path) -> subprocess.Popen[str]:
    words = command("run_name=ended")
    return subprocess.Popen(words, cwd=folder, env=surroundings(folder), stderr=subprocess.PIPE, text=True)


def wait_for_records(folder: Path, count: int) -> None:
    log = folder / "runs/ended/log.jsonl"
    while not log.exists() or log.read_bytes().count(b'"kind":"record"') < count:
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_what_was_measured_is_kept_and_the_rest_is_measured_once(tmp_path: Path, number: int, code: int) -> None:
    sweep = started(tmp_path)
    wait_for_records(tmp_path, 5)
    sweep.send_signal(number)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == code
    kept = read_run(tmp_path / "runs/ended").records
    if number == signal.SIGINT:
        assert said.splitlines()[-1].endswith("the same command with resume=ended continues")
    resumed = subprocess.run(
        command("resume=ended"),
        cwd=tmp_path,
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    run = read_run(tmp_path / "runs/ended")
    assert run.records[: len(kept)] == kept
    turns = [(record.cell, record.round) for record in run.records]
    assert len(turns) == len(set(turns)) == 6 * len(run.header.cells)


def test_an_interrupt_while_weights_are_loaded_ends_with_its_code(tmp_path: Path) -> None:
    sweep = started(tmp_path)
    assert sweep.stderr is not None
    assert any(line.startswith("loading ") for line in sweep.stderr)
    sweep.send_signal(signal.SIGINT)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].endswith("resume=ended continues")
