"""Launchers on a command line: what is theirs, what is the sweep's, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ktbench.cli import main
from ktbench.config import LAUNCHERS, compose, launch_jobs, launcher, split_launcher
from ktbench.config.launcher import Launch
from ktbench.resources import data_folder, install_command
from ktbench.spec.errors import RequestError


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "is_installed", lambda name: True)


@pytest.fixture
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "is_installed", lambda name: False)


def test_words_go_to_the_launcher_or_to_the_sweep(all_installed: None) -> None:
    words = ["+ablation=decode", "hydra/launcher=ray", "+hydra.launcher.ray.remote.num_cpus=2", "spread.jobs=3", "m=1"]
    launch, rest = split_launcher(words)
    assert launch == Launch(name="ray", words=("+hydra.launcher.ray.remote.num_cpus=2",), jobs=3)
    assert rest == ["+ablation=decode", "m=1"]
    assert split_launcher(rest) == (None, rest)


def test_a_default_gives_way_to_the_command_line() -> None:
    bare = Launch(name="joblib", words=(), jobs=None)
    assert bare.with_default("n_jobs", 1).words == ("hydra.launcher.n_jobs=1",)
    told = Launch(name="joblib", words=("hydra.launcher.n_jobs=2",), jobs=None)
    assert told.with_default("n_jobs", 1) == told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hydra/launcher=slurm"], "hydra/launcher=slurm: unknown, did you mean submitit_slurm?; allowed are joblib, "),
        (["hydra/launcher=basic"], "hydra/launcher=basic: unknown; allowed are "),
        (["hydra.launcher.partition=long"], "hydra.launcher.partition=long: name a launcher with hydra/launcher="),
        (["spread.jobs=4"], "spread.jobs=4: name a launcher with hydra/launcher="),
        (["hydra/launcher=ray", "spread.jobs=0"], "spread.jobs=0: must be a whole number from 1 up"),
        (["hydra/launcher=ray", "spread.jobs=x"], "spread.jobs=x: must be a whole number from 1 up"),
    ],
)
def test_bad_words_are_refused_in_one_line(all_installed: None, words: list[str], said: str) -> None:
    with pytest.raises(RequestError) as refused:
        split_launcher(words)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_that_lacks_says_what_to_install(
    none_installed: None, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "+ablation=decode", f"hydra/launcher={name}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ktbench: hydra/launcher={name}: ")
    assert install_command(name.partition("_")[0]) in said and said.count("\n") == 1


def test_jobs_are_run_by_a_launcher_of_hydra(tmp_path: Path) -> None:
    """By the one that it brings itself; `nox -s launchers` has the others."""
    done = launch_jobs(Launch(name="basic", words=(), jobs=None), tmp_path / "jobs", _named, ["a b", "c'd", "é,f"])
    assert done == ["ran a b", "ran c'd", "ran é,f"]


def _named(job: Any) -> str:
    return f"ran {job.shard}"


def test_nothing_of_hydra_is_used_that_it_keeps_to_itself() -> None:
    assert not [path for path in data_folder("conf").parent.glob("ktbench/**/*.py") if "hydra._" in path.read_text()]


@pytest.mark.parametrize("word", ["hydra/launcher=ray", "hydra.launcher.n_jobs=2", "spread.jobs=2"])
def test_only_a_sweep_takes_a_launcher(word: str) -> None:
    with pytest.raises(RequestError, match="only `sweep` uses launchers"):
        compose([word])
