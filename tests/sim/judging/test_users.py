"""Speeds that users report: the file, and what the simulator makes of it."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from ktbench.resources import data_folder
from ktbench.run.request import read_request
from ktbench.sim.advising.catalogue import read_box
from ktbench.sim.calibration import read_calibration
from ktbench.sim.errors import COVERAGE, interval, shipped_errors
from ktbench.sim.judging.users import UserReport, read_user_reports, simulated_speed
from ktbench.spec.run_spec import RunSpec

SHIPPED = data_folder("reports") / "users"
REPORTS = read_user_reports()


def test_there_are_enough_reports_each_with_its_page_and_date() -> None:
    assert len(REPORTS) >= 40
    assert len({one.id for one in REPORTS}) == len(REPORTS)
    assert len({one.link for one in REPORTS}) >= 20
    assert all(one.date.startswith("202") for one in REPORTS)


@pytest.mark.parametrize("one", REPORTS, ids=lambda one: one.id)
def test_every_report_is_of_a_machine_of_the_catalogue(one: UserReport) -> None:
    assert read_box(one.cpu, one.sockets, one.ram, one.gpu).machine().gpu == one.gpu
    assert 0 <= one.on_gpu < 1


def test_where_modules_share_a_channel_it_says_what_is_known_of_their_speed() -> None:
    """A report's own speed, as `at N` of `ram`, or that of the platform; or that it is open."""
    boxes = [(one, read_box(one.cpu, one.sockets, one.ram, one.gpu)) for one in REPORTS]
    shared = [(one, box) for one, box in boxes if box.per_channel > 1]
    assert shared
    assert all(box.ram.runs_at or box.shared_rate or "speed of the modules" in one.open for one, box in shared)


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


@pytest.fixture(scope="module")
def cell() -> RunSpec:
    return read_request(["model=deepseek_v3", "machine=paper_a100", "workload=decode"]).parts[0].spec


def speed(one: UserReport, cell: RunSpec) -> float:
    return simulated_speed(one, cell, read_calibration(one.calibration))


def test_fewer_bits_than_any_format_has_are_faster_still(cell: RunSpec) -> None:
    """By as much as Q2_K is faster than Q3_K: bits that are read take their time."""
    one = next(one for one in REPORTS if one.id == "ik-14700")
    assert one.bits < 1.8125
    seconds = [1 / speed(replace(one, bits=bits), cell) for bits in (1.8125, 2.625, 3.4375)]
    assert seconds[1] - seconds[0] == pytest.approx(seconds[2] - seconds[1])
    assert seconds[0] > 1 / speed(one, cell)


def test_codes_that_take_cores_longer_than_memory_cost_what_cores_take(cell: RunSpec) -> None:
    """Twelve cores at 3.2 GHz unpack 3.7 weights of IQ2_M a cycle; experts of DeepSeek-V3 that stay on the host."""
    one = next(one for one in REPORTS if one.id == "ik-437-w5-3425")
    shape = cell.model.shape
    weights = (1 - one.on_gpu) * shape.moe_layers * shape.top_k * shape.expert_params
    unpacked, memory = (1 / speed(replace(one, quantisation=name), cell) for name in ("UD-IQ2_M", "Q2_K"))
    assert unpacked > weights / (3.7 * 12 * 3.2e9) > memory
    assert speed(replace(one, quantisation="Q2_K"), cell) == speed(replace(one, quantisation="IQ2_K_R4"), cell)


def test_constants_are_fitted_on_two_machines_of_one_page() -> None:
    fitted = [one for one in REPORTS if one.fitted]
    assert len({one.link for one in fitted}) == 1
    assert {(one.cpu, one.sockets) for one in fitted} == {("Threadripper PRO 7965WX", 1), ("EPYC 9355", 1)}
    assert any(one.link == fitted[0].link for one in REPORTS if not one.fitted)


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
