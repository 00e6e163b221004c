"""Rows of runs that asked a suite: joins, averages, flips, and gaps with their reasons."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.cli.show import show
from ktbench.report.accuracy_table import accuracy_table
from ktbench.report.data import accuracy_csv_text, accuracy_json_text
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows, parts_of_average
from ktbench.results.answers import shares_of, subjects_of
from ktbench.results.scores import ScoreVerdict
from ktbench.spec.errors import FAILED
from ktbench.spec.record import KL, Outcome
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    NANO,
    SMALL,
    TABLE2,
    AnswerStore,
    DriftStore,
    deferring,
    row_of,
    scores_of,
    skipping,
    told,
)


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return DriftStore(arms=(BASE, deferring(2), skipping(6))).write(tmp_path_factory.mktemp("drift"))


def test_what_is_measured_stands_in_place_of_scores(drift: Run) -> None:
    row = row_of(drift, "+v+d skipping=6")
    measures = {(one.task, one.metric): one for one in row.measures}
    facts = [one for one in drift.sample_results if one.cell == row.row.cell and one.task == "decode"]
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


def test_windows_of_a_text_count_as_one(tmp_path: Path) -> None:
    """Residuals are summed over a text before they are squared: of windows that are all alike nothing is gained."""
    run = DriftStore(arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    facts = [one for one in run.sample_results if one.task == "decode"]
    windows = [
        replace(one, question=f"{one.question}/{at}", cluster=one.question, weight=one.weight / 5)
        for one in facts
        for at in range(5)
    ]
    cut = replace(run, sample_results=tuple(windows))
    for whole, parts in zip(*(row_of(one, "+v+d deferral=2").measures[:3] for one in (run, cut)), strict=True):
        for one, other in ((whole.value, parts.value), (whole.change, parts.change)):
            assert (one is None) == (other is None)
            if one and other:
                assert [other.mid, other.se, other.low, other.high] == pytest.approx(
                    [one.mid, one.se, one.low, one.high], rel=1e-9
                )


def test_windows_that_a_baseline_lacks_leave_the_rest_of_their_text(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    base, mine = (cell.key for cell in run.header.cells)
    facts = [replace(one, cluster="one" if one.question < "text 2" else "") for one in run.sample_results]
    kept = [one for one in facts if (one.cell, one.question) != (base, "text 0")]
    losses = {
        cell: {
            one.question: (one.value or 0.0, one.weight)
            for one in kept
            if (one.cell, one.task, one.metric) == (cell, "decode", "nll_nats")
        }
        for cell in (base, mine)
    }
    moved = [losses[mine][name][0] - value for name, (value, _) in losses[base].items()]
    change = row_of(replace(run, sample_results=tuple(kept)), "+v+d deferral=2").measures[0].change
    assert change is not None and change.n == 3
    assert change.mid == pytest.approx(np.expm1(np.average(moved, weights=[w for _, w in losses[base].values()])))


def test_intervals_stay_within_what_can_be_measured(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(1)), questions=3).write(tmp_path)
    mine = run.header.cells[1].key
    wide = [
        replace(one, value=0.9 if one.question.endswith("0") else float(one.metric == "top1"))
        for one in run.sample_results
        if one.cell == mine and one.metric in ("kl_nats", "top1")
    ]
    for one in row_of(told(run, *wide), "+v+d deferral=1").measures:
        assert one.value.low is not None and one.value.high is not None
        assert 0 <= one.value.low <= one.value.mid <= one.value.high <= (1 if one.metric == "top1" else np.inf)


def test_texts_without_a_value_are_counted_once(tmp_path: Path) -> None:
    run = DriftStore(arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    lost = [
        replace(one, value=None, why="logits are not finite")
        for one in run.sample_results
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


def test_the_kl_is_averaged_as_scores_are(small: Run) -> None:
    """Over tokens within a task, then over tasks, then over categories."""
    row = row_of(small, "+v+d skipping=6")
    found = [one for one in small.sample_results if one.cell == row.row.cell and one.metric == KL]
    of_task = {task.name: [one for one in found if one.task == task.name] for task in NANO.tasks}
    means = {
        name: np.average([one.value for one in ones], weights=[one.weight for one in ones])  # type: ignore[arg-type]
        for name, ones in of_task.items()
    }
    categories = [np.mean([means[task.name] for task in NANO.tasks if task.category == c]) for c in NANO.categories]
    kl = (row.result() or pytest.fail()).kl
    assert kl is not None and kl.low is not None and kl.high is not None
    assert kl.mid == pytest.approx(np.mean(categories))
    assert 0 <= kl.low < kl.mid < kl.high
    one = row.result("math_1", "task")
    assert one is not None and one.kl is not None and one.kl.mid == pytest.approx(means["math_1"])
    assert row.measures == ()


def test_each_score_has_its_kl_in_tables_and_files(small: Run) -> None:
    rows = accuracy_rows(small)
    table = accuracy_table(small, rows)
    at = table.headings.index("KL (nats/token ± SE)")
    assert table.cells[0][at] == "reference"
    assert all("±" in line[at] for line in table.cells[1:])
    lines = list(csv.DictReader(io.StringIO(accuracy_csv_text(small, rows))))
    assert len(lines) == len(rows) * (1 + len(NANO.categories) + len(NANO.tasks))
    assert all(float(line["kl_nats_low"]) <= float(line["kl_nats"]) <= float(line["kl_nats_high"]) for line in lines)
    average = json.loads(accuracy_json_text(small, rows, table))["rows"][2]["results"][0]
    kl = (rows[2].result() or pytest.fail()).kl
    assert kl is not None and average["kl"]["mid"] == kl.mid


def test_a_score_without_a_kl_says_why(tmp_path: Path) -> None:
    run = replace(SMALL, questions=3).write(tmp_path)
    mine = run.header.cells[1].key
    lost = [
        replace(one, value=None, weight=0.0, why="no predictions of the unmodified model")
        for one in run.sample_results
        if (one.cell, one.task, one.metric) == (mine, "math_1", KL)
    ]
    row = row_of(told(run, *lost), "+v+d deferral=2")
    average, other = row.result(), row.result("math_2", "task")
    assert average is not None and average.score is not None and average.kl is None
    assert average.missing["kl"] == "math_1: no predictions of the unmodified model"
    assert other is not None and other.kl is not None and "kl" not in other.missing
    assert row.ungraded == {}


def test_answers_that_nothing_was_compared_for_have_no_column(tmp_path: Path) -> None:
    run = AnswerStore(arms=(BASE, deferring(2)), suite=TABLE2, questions=3, figure="accuracy").write(tmp_path)
    rows = accuracy_rows(run)
    assert not any(heading.startswith("KL") for heading in accuracy_table(run, rows).headings)
    assert (rows[1].result() or pytest.fail()).missing["kl"] == "humaneval: its predictions were not compared"


def test_the_average_is_of_categories_of_tasks_of_questions(small: Run) -> None:
    tasks = {name: np.mean(list(scores.values())) for name, scores in scores_of(small, "+v+d").items()}
    categories = [
        np.mean([tasks[task.name] for task in NANO.tasks if task.category == name]) for name in NANO.categories
    ]
    result = row_of(small, "+v+d").result()
    assert result is not None and result.score is not None
    assert result.score.mid == pytest.approx(np.mean(categories))
    assert (result.graded, result.questions) == (144, 144)


def test_flips_are_counted_question_by_question(small: Run) -> None:
    before, after = scores_of(small, "+v+d"), scores_of(small, "+v+d skipping=6")
    moved = [after[task][key] - before[task][key] for task in before for key in before[task]]
    change = (row_of(small, "+v+d skipping=6").result() or pytest.fail()).change
    assert change is not None
    assert (change.flips.lost, change.flips.gained) == (moved.count(-1.0), moved.count(1.0))
    assert change.verdict is ScoreVerdict.LOWER
    assert change.difference.n == 144


@pytest.mark.parametrize(
    ("average", "kind", "expected"),
    [
        ("categories", "average", {"a": 1 / 4, "b": 1 / 4, "c": 1 / 2}),
        ("tasks", "average", {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        ("questions", "average", {"a": 10 / 60, "b": 20 / 60, "c": 30 / 60}),
        ("tasks", "category", {"a": 1 / 2, "b": 1 / 2}),
        ("questions", "category", {"a": 1 / 3, "b": 2 / 3}),
    ],
)
def test_what_a_task_counts_for(average: str, kind: str, expected: dict[str, float]) -> None:
    tasks = tuple(TaskSpec(name=name, source=name, category="x" if name < "c" else "y") for name in "abc")
    suite = SuiteSpec(name="suite", tasks=tasks, average=average)  # type: ignore[arg-type]
    subject = next(one for one in subjects_of(suite, "abc") if one.kind == kind)
    assert shares_of(subject, suite, {"a": 10, "b": 20, "c": 30}) == pytest.approx(expected)


def test_tasks_without_a_graded_question_count_for_nothing() -> None:
    subject = subjects_of(NANO, {task.name for task in NANO.tasks})[0]
    shares = shares_of(subject, NANO, {task.name: 5 for task in NANO.tasks if task.category != "math"})
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == pytest.approx([1 / 10] * 10)


def test_answers_that_cannot_be_graded_are_left_out_and_counted(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE, deferring(2)), questions=6).write(tmp_path)
    lost = [
        replace(one, value=None, why="needs another model as its judge")
        for one in run.sample_results
        if one.task == "math_1" and one.question.endswith(("/0", "/1"))
    ]
    run = told(run, *lost)
    row = row_of(run, "+v+d")
    result = row.result("math_1", "task")
    assert result is not None and result.score is not None
    assert (result.graded, result.questions, result.score.n) == (4, 6, 4)
    assert row.ungraded == {("math_1", "needs another model as its judge"): 2}
    said = accuracy_table(run, accuracy_rows(run)).conditions
    assert "Not graded here: 2 answers of math_1 (needs another model as its judge)." in said
    assert "Graded/total (questions): 70/72." in said


def test_averages_say_which_tasks_they_leave_out(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    mine = next(cell.key for cell in run.header.cells if "deferral" in cell.label)
    lost = [replace(one, value=None, why="no test ran") for one in run.sample_results if one.task.startswith("coding")]
    run = told(run, *(one for one in lost if one.cell == mine))
    said = accuracy_table(run, accuracy_rows(run)).conditions
    assert any(one.startswith("The average of +v+d deferral=2 leaves out coding_1, coding_2, of") for one in said)
    run = told(run, *lost)
    assert row_of(run, "+v+d").result("coding", "category") is not None
    said = accuracy_table(run, accuracy_rows(run)).conditions
    assert "The average leaves out coding_1, coding_2, of which nothing can be graded here." in said


def test_only_questions_that_both_answered_are_compared(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE, deferring(2)), questions=6).write(tmp_path)
    mine = next(cell.key for cell in run.header.cells if "deferral" in cell.label)
    lost = [
        replace(one, value=None, why="cut off")
        for one in run.sample_results
        if one.cell == mine and one.task == "math_1" and one.question.endswith("/0")
    ]
    extra = replace(lost[0], question="math_1/only here", value=1.0, why="")
    run = told(run, *lost, extra)
    row = row_of(run, "+v+d deferral=2")
    result = row.result("math_1", "task")
    assert result is not None and result.change is not None
    assert (result.graded, result.change.difference.n) == (6, 5)
    note = next(note for note in accuracy_table(run, accuracy_rows(run)).notes if "compared on" in note)
    assert note == "+v+d deferral=2 — compared on 71 of 72 graded questions"


def test_samples_of_a_question_are_averaged_first(tmp_path: Path) -> None:
    store = AnswerStore(arms=(BASE, deferring(6)), suite=TABLE2, questions=8, figure="accuracy")
    run = store.write(tmp_path)
    result = row_of(run, "+v+d").result("humaneval", "task")
    assert result is not None and result.score is not None
    values = [
        one.value for one in run.sample_results if one.task == "humaneval" and one.cell == run.header.cells[0].key
    ]
    means = np.array(values, dtype=float).reshape(8, 10).mean(axis=1)
    assert result.score.n == 8
    assert result.score.mid == pytest.approx(means.mean())
    assert result.score.se == pytest.approx(means.std(ddof=1) / np.sqrt(8))
    assert parts_of_average(accuracy_rows(run))[0] == "task"  # three categories for four tasks say no more


@pytest.mark.usefixtures("no_files")
def test_a_task_that_failed_costs_the_averages_it_is_in(tmp_path: Path) -> None:
    broken = replace(BASE, label="+v+d deferral=3", ends={"math_1": (Outcome.CRASHED, "signal 9")})
    run = replace(SMALL, arms=(BASE, broken), questions=6).write(tmp_path)
    row = row_of(run, "+v+d deferral=3")
    assert (row.outcome, row.why) == (Outcome.CRASHED, "math_1: signal 9")
    average, math, coding = row.result(), row.result("math", "category"), row.result("coding", "category")
    assert average is not None and math is not None and coding is not None
    assert (average.score, math.score) == (None, None)
    assert average.missing["score"] == "math_1: CRASHED: signal 9"
    assert coding.change is not None
    table = accuracy_table(run, accuracy_rows(run))
    headings = [column.heading for column in table.columns]
    cells = dict(zip(headings, table.cells[1], strict=True))
    assert (cells["outcome"], cells["score (% ± SE [95 % interval])"], cells["verdict"]) == ("CRASHED", "—", "—")
    assert "+v+d deferral=3 — CRASHED: math_1: signal 9" in table.notes
    assert show(run) == FAILED


def test_a_crash_is_not_hidden_by_what_is_unsupported(tmp_path: Path) -> None:
    ends = {"coding_1": (Outcome.UNSUPPORTED, "no sandbox"), "math_1": (Outcome.CRASHED, "signal 9")}
    run = replace(SMALL, arms=(BASE, replace(BASE, label="+v+d+n", ends=ends)), questions=2).write(tmp_path)
    assert (row_of(run, "+v+d+n").outcome, row_of(run, "+v+d+n").why) == (Outcome.CRASHED, "math_1: signal 9")


@pytest.mark.usefixtures("no_files")
def test_what_did_not_run_at_all_is_a_row_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = replace(BASE, label="+v+d+n", ends={"": (Outcome.UNSUPPORTED, "+n: one NUMA node")})
    halted = replace(BASE, label="+v+d deferral=1", open=tuple(task.name for task in NANO.tasks[3:]))
    run = replace(SMALL, arms=(BASE, lacking, halted), questions=4).write(tmp_path)
    assert row_of(run, "+v+d+n").why == "+n: one NUMA node"
    assert (row_of(run, halted.label).outcome, row_of(run, halted.label).why) == (
        None,
        "3 of 12 tasks evaluated so far",
    )
    assert show(run) == FAILED  # one is not done
    text = capsys.readouterr().out
    assert "+v+d+n           UNSUPPORTED: +n: one NUMA node" in text
    assert "+v+d deferral=1  not evaluated: 3 of 12 tasks evaluated so far" in text


def test_without_a_baseline_nothing_is_compared(tmp_path: Path) -> None:
    failed = replace(BASE, ends={"": (Outcome.NO_MEMORY, "killed")})
    run = replace(SMALL, arms=(failed, deferring(2)), questions=4).write(tmp_path)
    result = row_of(run, "+v+d deferral=2").result()
    assert result is not None
    assert result.score is not None and result.change is None
    assert "the baseline has no graded answer" in result.missing["change"]
    assert any("the baseline has no graded answer" in note for note in accuracy_table(run, accuracy_rows(run)).notes)
