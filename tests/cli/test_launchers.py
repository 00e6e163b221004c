"""Sweeps spread by launchers as they are, on this host: submitit's local one, joblib, and a Ray of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from ktbench.config import is_installed
from ktbench.results import Run, read_run
from ktbench.spec.record import Outcome
from ktbench.spec.wire import to_plain
from tests.sim.testbed import testbed

ROOT = Path(__file__).parents[2]
WORDS = ("sweep", "model=tiny", "workload.prompt=8", "workload.steps=2", "sweep.arms=[base,+v]", "workload.batch=1,2")
MEASURED = ("measure.min_rounds=1", "measure.max_rounds=1")
QUIET = {"ray": ("+hydra.launcher.ray.init.include_dashboard=false",)}
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(900)]


def swept(folder: Path, launcher: str, *words: str) -> subprocess.CompletedProcess[str]:
    if not is_installed(launcher):
        pytest.skip(f"hydra/launcher={launcher} is not installed: nox -s launchers")
    (folder / "box.yaml").write_text(yaml.safe_dump(to_plain(testbed()) | {"name": "box", "title": "A box"}))
    command = [sys.executable, "-m", "ktbench", *WORDS, f"hydra/launcher={launcher}", *QUIET.get(launcher, ()), *words]
    env = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False)


def ended(run: Run) -> set[Outcome]:
    assert {record.cell for record in run.records} == {cell.key for cell in run.header.cells}
    return {record.outcome for record in run.records}


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_simulated_cells_are_spread_and_come_back(tmp_path: Path, launcher: str) -> None:
    done = swept(tmp_path, launcher, "machine=box.yaml", "run_name=spread")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "runs/spread")
    assert ended(run) == {Outcome.OK} and len(run.records) == 4
    assert len(list((tmp_path / "runs/spread/nodes").glob("001-*/log.jsonl"))) == 2
    assert "2 of 2 shards are launched with" in done.stderr


@pytest.mark.skipif(find_spec("ktbench._kernels") is None, reason="the kernel extension is not built")
def test_shares_that_meet_on_a_host_take_turns(tmp_path: Path) -> None:
    done = swept(tmp_path, "submitit_local", *MEASURED, "run_name=spread")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "runs/spread")
    assert ended(run) == {Outcome.OK}
    spans = [
        {record.started for record in read_run(folder).records}
        for folder in sorted((tmp_path / "runs/spread/nodes").glob("001-*"))
    ]
    assert max(spans[0]) <= min(spans[1]) or max(spans[1]) <= min(spans[0])


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_keys_that_a_launcher_does_not_have_are_refused_before_anything_runs(tmp_path: Path, launcher: str) -> None:
    done = swept(tmp_path, launcher, "machine=box.yaml", "hydra.launcher.partion=long")
    assert done.returncode == 2
    assert done.stderr.startswith(f"ktbench: hydra.launcher.partion=long: hydra/launcher={launcher} has no such key")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "runs").exists()


def test_two_timings_at_once_are_refused(tmp_path: Path) -> None:
    done = swept(tmp_path, "joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 2
    assert "timing with two cells at once on one host is refused" in done.stderr
