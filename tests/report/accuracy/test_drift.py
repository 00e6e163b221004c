"""What is measured in place of scores: perplexity, agreement and divergence."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.report.accuracy_table import accuracy_table
from ktbench.report.data import accuracy_csv_text, accuracy_json_text
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows
from ktbench.spec.record import Outcome
from ktbench.spec.suite import TaskSpec
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    SMALL,
    DriftStore,
    deferring,
    row_of,
    skipping,
    told,
)


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return DriftStore(arms=(BASE, deferring(2), skipping(6))).write(tmp_path_factory.mktemp("drift"))


def test_what_is_measured_stands_in_place_of_scores(drift: Run) -> None:
    row = row_of(drift, "+v+d skipping=6")
    measures = {(one.task, one.metric): one for one in row.measures}
    facts = [one for one in drift.scored if one.cell == row.row.cell and one.task == "decode"]
    losses = [(one.value, one.weight) for one in facts if one.metric == "nll_nats" and one.value is not None]
    mean = np.average([value for value, _ in losses], weights=[weight for _, weight in losses])
    perplexity = measures["decode", "nll_nats"]
    assert row.results == ()
    assert perplexity.value.mid == pytest.approx(np.exp(mean))
    assert perplexity.change is not None and perplexity.change.low is not None and perplexity.change.low > 0
    table = accuracy_table(drift, accuracy_rows(drift))
    headings = [column.heading for column in table.columns]
    lines = list(csv.DictReader(io.StringIO(accuracy_csv_text(drift, accuracy_rows(drift)))))
    line = next(one for one in lines if one["label"] == row.row.label)
    assert (line["metric"], float(line["value"])) == ("perplexity", perplexity.value.mid)
    found = json.loads(accuracy_json_text(drift, accuracy_rows(drift), table))["rows"][2]["measures"][0]
    assert (found["metric"], found["value"]["mid"]) == ("perplexity", perplexity.value.mid)
    assert "decode: KL (nats ± SE)" in headings and "prefill: top-1 agreement (% ± SE)" in headings
    assert not any("score" in heading for heading in headings)


def test_intervals_stay_within_what_can_be_measured(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(1)), questions=3).write(tmp_path)
    mine = run.header.cells[1].key
    wide = [
        replace(one, value=0.9 if one.question.endswith("0") else float(one.metric == "top1"))
        for one in run.scored
        if one.cell == mine and one.metric in ("kl_nats", "top1")
    ]
    for one in row_of(told(run, *wide), "+v+d deferral=1").measures:
        assert one.value.low is not None and one.value.high is not None
        assert 0 <= one.value.low <= one.value.mid <= one.value.high <= (1 if one.metric == "top1" else np.inf)


def test_texts_without_a_value_are_counted_once(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    lost = [
        replace(one, value=None, why="logits are not finite")
        for one in run.scored
        if one.task == "decode" and one.question == "text 0"
    ]
    said = accuracy_table(run := told(run, *lost), accuracy_rows(run)).conditions
    assert "Without a value: 1 text of decode (logits are not finite), left out of the means." in said


def test_what_is_measured_voids_no_average_where_it_fails(tmp_path: Path) -> None:
    suite = replace(FOUR, tasks=(*FOUR.tasks, TaskSpec(name="wikitext2", source="wikitext2")))
    failing = {"wikitext2": (Outcome.UNSUPPORTED, "no file")}
    arms = (replace(BASE, ends=failing), replace(deferring(2), ends=failing))
    rows = accuracy_rows(replace(SMALL, suite=suite, arms=arms, questions=3).write(tmp_path))
    assert all(result and result.score for row in rows for result in [row.result()])
    assert rows[1].outcome is Outcome.UNSUPPORTED


def test_the_baseline_of_a_drift_is_its_reference(drift: Run) -> None:
    table = accuracy_table(drift, accuracy_rows(drift))
    at = [column.heading for column in table.columns].index("decode: KL (nats ± SE)")
    assert table.cells[0][at] == "reference"
