"""`validate`: the machine model against published numbers and against measured runs."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from ktbench.cli import main, validate
from ktbench.results import published_names, read_published
from ktbench.sim import FIGURES
from ktbench.sim.judging.validation import read_explanations

RECORDED = Path(__file__).parents[2] / "reports" / "recorded" / "zen4_2_cores"


def test_judges_without_fitting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "all of Fig. 11, 12 and 14 on the other two models | held out | 80" in out
    assert "gains of the breakdown are on the published side of 1: 27 of 27" in out
    assert not [line for line in out.splitlines() if line.endswith("— not explained")]
    with (tmp_path / "cells.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["figure"] for row in rows} == set(FIGURES)
    assert all(float(row["error"]) > -1 for row in rows)
    assert (tmp_path / "validation.md").read_text().startswith("# The machine model against published numbers")


def test_one_validation_does_not_replace_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are made of the wall clock, which may be set back."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2030, 1, 1)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(validate, "datetime", Standing)
    monkeypatch.setattr(validate, "_of_publications", lambda *, fit: {"validation.md": "judged\n"})
    for _ in range(2):
        assert main(["validate"]) == 0
    assert len(list(tmp_path.glob("runs/*/validation.md"))) == 2


def test_judges_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"run={RECORDED / 'lean'},{RECORDED / 'depth'}", f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "| held out, decode |" in out
    assert "Measured: medians over rounds." in out


def test_judges_reports_of_users_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "users=true", f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "| all | held out | " in out
    assert "https://github.com/kvcache-ai/ktransformers/issues/314" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        "validation.md", "judged.csv", "users.pdf", "users.svg", "users.png",
    }  # fmt: skip


def test_constants_that_are_fitted_on_a_run_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ktbench.sim.judging.validation.fit_measured", lambda cells, cost: cost.changed({"fused_call_us": 12.5})
    )
    assert main(["validate", "fit=true", f"run={RECORDED / 'lean'}", f"out={tmp_path}"]) == 0
    written = yaml.safe_load((tmp_path / "ktbench.yaml").read_text())
    assert written["constants"]["fused_call_us"]["value"] == 12.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frob=1"], "validate frob=1: unknown argument; allowed are fit, users, run, out"),
        (["fit=maybe"], "validate fit=maybe: allowed are true and false"),
        (["users=maybe"], "validate users=maybe: allowed are true and false"),
        (["users=true", "run=latest"], "validate users=true: excludes run=RUN"),
        (["run=nosuchrun"], "nosuchrun: no such run"),
    ],
)
def test_bad_requests_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_explanations_are_of_published_numbers() -> None:
    known = {number.id for number in read_published(*published_names())}
    assert set(read_explanations()) <= known
