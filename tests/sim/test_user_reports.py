"""Speeds that users report: the file, and what the simulator makes of it."""

from __future__ import annotations

import csv
from math import exp
from pathlib import Path

import numpy as np
import pytest

from ktbench.resources import data_folder
from ktbench.run.request import read_request
from ktbench.sim.calibration import read_calibration
from ktbench.sim.catalogue import machine_of_box, read_box
from ktbench.sim.user_reports import COVERAGE, UserReport, interval, read_user_reports, shipped_errors, simulated_speed

SHIPPED = data_folder("reports") / "users"
REPORTS = read_user_reports()


def test_there_are_enough_reports_each_with_its_page_and_date() -> None:
    assert len(REPORTS) >= 40
    assert len({one.id for one in REPORTS}) == len(REPORTS)
    assert len({one.link for one in REPORTS}) >= 20
    assert all(one.date.startswith("202") for one in REPORTS)


@pytest.mark.parametrize("one", REPORTS, ids=lambda one: one.id)
def test_every_report_is_of_a_machine_of_the_catalogue(one: UserReport) -> None:
    assert machine_of_box(read_box(one.cpu, one.sockets, one.ram, one.gpu)).gpu == one.gpu
    assert 0 <= one.on_gpu < 1


def test_what_ships_is_what_the_simulator_says() -> None:
    """Of reports of one model, which all programs have; `validate users=true` writes all."""
    cell = read_request(["model=qwen3_235b_a22b", "machine=paper_a100", "workload=decode"]).parts[0].spec
    with (SHIPPED / "judged.csv").open() as file:
        shipped = {row["id"]: row for row in csv.DictReader(file)}
    assert shipped.keys() == {one.id for one in REPORTS}
    some = [one for one in REPORTS if one.model == "qwen3_235b_a22b"]
    assert {one.calibration for one in some} >= {"kt_llamafile", "ktransformers", "llama_cpp"}
    for one in some:
        speed = simulated_speed(one, cell, read_calibration(one.calibration))
        assert speed == pytest.approx(float(shipped[one.id]["simulated"]), rel=1e-3)
        assert float(shipped[one.id]["error"]) == pytest.approx(speed / one.tokens_per_s - 1, abs=2e-3)


def test_the_intervals_that_ship_hold_what_they_are_meant_to() -> None:
    with (SHIPPED / "judged.csv").open() as file:
        held_out = [row for row in csv.DictReader(file) if row["fitted"] == "False"]
    assert len(held_out) == len(shipped_errors())
    inside = [float(row["low"]) <= float(row["reported"]) <= float(row["high"]) for row in held_out]
    assert sum(inside) >= 0.8 * len(inside)


def test_an_interval_holds_the_next_error_as_often_as_it_says() -> None:
    """Of errors that are equally likely in any order; with a bias, which the interval takes back."""
    random = np.random.default_rng(0)
    held = []
    for errors in random.standard_t(3, size=(4000, 40)) * 0.2 + 0.3:
        low, high = interval(errors[:-1].tolist(), 10.0)
        held.append(low <= 10.0 / exp(errors[-1]) <= high)
    assert COVERAGE - 0.02 < np.mean(held) < COVERAGE + 0.04


def test_few_errors_make_no_interval() -> None:
    with pytest.raises(ValueError, match="too few"):
        interval([0.1] * 18, 10.0)


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("https://", "http://", "needs a link"),
        ("KTransformers 0.2,", "vLLM 0.9,", "program=vLLM"),
        (",Q4_K_M,", ",Q4_K_M,many", "many"),
        ("id,link", "id,page", "columns must be"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(tmp_path: Path, was: str, now: str, words: str) -> None:
    text = (SHIPPED / "machines.csv").read_text(encoding="utf-8")
    assert was in text
    path = tmp_path / "machines.csv"
    path.write_text(text.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=words) as refused:
        read_user_reports(path)
    assert str(refused.value).startswith(f"{path}:")
