"""What documents say of where their numbers are from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ktbench.report.documents import documents_of
from ktbench.report.paper_bundle import origin_sentence
from ktbench.results import read_published
from ktbench.spec.record import Outcome
from tests.report.accuracy_stores import FOUR, Answering, AnswerStore
from tests.report.paper_cells import KT, cell, record, run_of
from tests.report.simulated_runs import simulated
from tests.report.synthetic import Store


def test_scores_without_times_are_measured(tmp_path: Path) -> None:
    (document,) = documents_of(AnswerStore(arms=(Answering(label="+v+d"),), suite=FOUR).write(tmp_path))
    assert document.kind == "accuracy" and not any(row.timed for row in document.rows)
    assert document.origins == ("measured",)
    assert origin_sentence(document).startswith("Numbers: measured. Run accuracy, code ")


def test_published_numbers_are_said_alone_and_beside_others() -> None:
    here = cell(KT)
    run = run_of([(here, record(here, 1 / 6.0))], "fig12")
    *_, beside = documents_of(run)
    assert beside.kind == "paper" and beside.origins == ("simulated", "published")
    assert origin_sentence(beside).startswith("Numbers: simulated and published. Run r, ")
    alone = replace(run, header=replace(run.header, cells=()), records=(), published=read_published("fig12"))
    (document,) = documents_of(alone)
    assert origin_sentence(document).startswith("Numbers: published. Run r, ")


def test_cells_that_could_not_run_give_no_numbers(tmp_path: Path) -> None:
    ours, here = cell(KT), cell(KT, on=None)
    lacking = replace(record(here, 1.0), outcome=Outcome.UNSUPPORTED, why="no AMX", samples_s=())
    *_, beside = documents_of(run_of([(ours, record(ours, 1 / 6.0)), (here, lacking)], "fig12"))
    assert beside.origins == ("simulated", "published")
    crashed = Answering(label="+v+d", ends={"": (Outcome.CRASHED, "the worker died")})
    (document,) = documents_of(AnswerStore(arms=(crashed,), suite=FOUR).write(tmp_path))
    assert document.origins == ()


def test_rounds_are_those_of_the_measured_rows(tmp_path: Path) -> None:
    both = simulated(Store(rounds=6, steps=1).write(tmp_path), beside=True)
    (document,) = documents_of(both)
    assert document.origins == ("measured", "simulated")
    assert origin_sentence(document).startswith("Numbers: measured and simulated. Intervals hold the median over 6 ")
