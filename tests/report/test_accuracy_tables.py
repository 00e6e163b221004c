"""Studies over formats and over speed: what is compared with what, grids and Pareto points."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

import pytest

from ktbench.cli.show import DONE, show
from ktbench.cli.streams import printing
from ktbench.report.accuracy_table import accuracy_table, grids_below
from ktbench.report.data import accuracy_json_text
from ktbench.report.documents import page_of
from ktbench.report.text import score_interval_text
from ktbench.report.web.findings import best_score
from ktbench.report.write import write_report
from ktbench.results import Log, Run, read_run
from ktbench.results.accuracy import accuracy_rows, frontier_of, standings
from ktbench.results.usage import Spread
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    FRONTIER,
    PRECISION,
    SMALL,
    Answering,
    DriftStore,
    deferring,
    scores_of,
    skipping,
    told,
)


@pytest.mark.usefixtures("no_files")
def test_the_terminal_shows_speeds_and_drift_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(FRONTIER, suite=FOUR, arms=FRONTIER.arms[:2], questions=4).write(tmp_path))
    assert "tokens/s  the baseline" in capsys.readouterr().out
    show(DriftStore(arms=(BASE, skipping(6))).write(tmp_path))
    assert "top-1 30.8 ± 2.5 %" in capsys.readouterr().out


def test_the_best_score_is_the_highest_of_arms_with_its_interval(small: Run) -> None:
    rows = accuracy_rows(small)
    means = {row.row.label: [*scores_of(small, row.row.label).values()] for row in rows}
    mean = {label: fmean(fmean(task.values()) for task in tasks) for label, tasks in means.items()}
    found = best_score(rows)
    assert found is not None
    row, text = found
    assert mean[row.row.label] == max(mean.values())
    assert score_interval_text(row.score) in text
    assert best_score(rows[:1]) is None
    _, tied = best_score([row, replace(row, row=replace(row.row, label="+twin"))]) or (row, "")
    assert "+twin" in tied


def test_the_json_is_plain_and_complete(small: Run) -> None:
    rows = accuracy_rows(small)
    content = json.loads(accuracy_json_text(small, rows, accuracy_table(small, rows)))
    assert content["header"]["suite"]["name"] == "nano"
    assert [row["label"] for row in content["rows"]] == [row.row.label for row in rows]
    assert content["rows"][1]["ends"]["math_1"]["requests"] == 12


def test_answers_by_likelihood_are_said_not_to_feel_deferral(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    run = told(run, *(replace(one, tokens=None) for one in run.sample_results if one.task == "math_1"))
    said = accuracy_table(run, accuracy_rows(run)).conditions
    assert "Deferral acts in decode steps, never in prefill; not for math_1, where nothing is decoded." in said
    assert any(sentence == "Questions (math_1): 0-shot." for sentence in said)


def test_what_was_cut_off_is_told(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE, deferring(2)), questions=4).write(tmp_path)
    before = accuracy_table(run, accuracy_rows(run)).conditions
    more = [replace(end, cut_answers=3, cut_prompts=1) for end in run.task_results if end.task == "math_1"]
    run = replace(run, task_results=(*run.task_results, *more[1:]))
    said = [one for one in accuracy_table(run, accuracy_rows(run)).conditions if one not in before]
    assert [("0 to 3 of 4 answers to math_1" in one, "0 to 1 of 4 prompts of math_1" in one) for one in said] == [
        (True, False),
        (False, True),
    ]


def test_known_answers_are_told_from_computed_ones(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(BASE,), questions=4).write(tmp_path)
    log = Log(run.folder)
    log.append(*(replace(end, cached=4) for end in run.task_results))
    log.close()
    assert "48 of 48 requests answered from the cache" in accuracy_rows(read_run(run.folder))[0].evidence


@pytest.mark.usefixtures("no_files")
def test_the_terminal_shows_rows_and_categories(small: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with printing(verbose=True):
        assert show(small) == DONE
    text = capsys.readouterr().out
    assert "the baseline" in text and "no difference shown" in text
    assert "Relative change by category (%; * beyond noise):" in text
    assert "seen: avx512_calls 12,000, tasks_dynamic 12,000, deferred_experts 12,000" in text


def test_the_page_of_several_parts_keeps_their_grids(tmp_path: Path) -> None:
    run = replace(SMALL, suite=FOUR, questions=2).write(tmp_path)
    (part,) = run.header.parts
    parts = tuple(replace(part, name=name, title=f"Part {name}") for name in ("one", "other"))
    cells = tuple(replace(cell, part=part.name) for part in parts for cell in run.header.cells)
    scored = tuple(replace(one, cell=f"{one.cell}-{part.name}") for part in parts for one in run.sample_results)
    asked = tuple(replace(one, cell=f"{one.cell}-{part.name}") for part in parts for one in run.task_results)
    header = replace(run.header, parts=parts, cells=cells)
    run = replace(run, header=header, sample_results=scored, task_results=asked)
    files = {path.name: path.read_text() for path in write_report(run, ["md"])}
    assert [*files] == ["accuracy.md", "accuracy-one.md", "accuracy-other.md"]
    assert files["accuracy.md"] == page_of(run)
    assert files["accuracy.md"].count("Relative change by category") == 2


def test_a_part_that_asks_nothing_is_as_before(small: Run) -> None:
    with pytest.raises(AssertionError, match="evaluates no suite"):
        accuracy_rows(replace(small, header=replace(small.header, suite=None)))


def test_arms_may_be_those_of_any_order(tmp_path: Path) -> None:
    run = replace(SMALL, arms=(Answering(label="+v+d deferral=1"), BASE), questions=4).write(tmp_path)
    assert [row.is_baseline for row in accuracy_rows(run)] == [False, True]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return replace(PRECISION, suite=FOUR, questions=12).write(tmp_path_factory.mktemp("formats"))


def test_all_formats_are_compared_with_the_first(formats: Run) -> None:
    rows = accuracy_rows(formats)
    assert [row.is_baseline for row in rows] == [True] + [False] * 14
    assert all(result.change for row in rows[1:] if (result := row.result()))
    grid = grids_below(formats, rows)[0]
    assert grid.headings == ("experts", "device role bf16", "device role int8", "device role int4_g32")
    assert [line[0] for line in grid.lines] == ["bf16", "int8", "int4_g32", "q8_0", "q4_0"]
    assert "(" not in grid.lines[0][1] and "(" in grid.lines[4][3]


def test_a_grid_of_formats_says_which_arm_it_shows(formats: Run, tmp_path: Path) -> None:
    assert "(arm" not in grids_below(formats, accuracy_rows(formats))[0].title
    arms = (*PRECISION.arms, replace(BASE, label="+v+d+l deferral=2"))
    run = replace(PRECISION, arms=arms, formats=PRECISION.formats[:2], suite=FOUR, questions=2).write(tmp_path)
    rows = accuracy_rows(run)
    assert grids_below(run, rows)[0].title.endswith("(arm +v+d+l)")
    assert "average score in % (arm +v+d+l), and" in accuracy_table(run, rows).figure_caption


def test_none_is_better_and_faster_than_a_pareto_point(tmp_path: Path) -> None:
    run = replace(FRONTIER, suite=FOUR, questions=12).write(tmp_path)
    rows = accuracy_rows(run)
    data = json.loads(accuracy_json_text(run, rows, accuracy_table(run, rows)))
    points = [(row["tokens_per_s"], row["results"][0]["score"]["mid"], row["is_pareto"]) for row in data["rows"]]
    for speed, score, is_pareto in points:
        beaten = any(s >= speed and v >= score and (s, v) != (speed, score) for s, v, _ in points)
        assert is_pareto is not beaten


def test_a_second_baseline_is_no_rival_of_the_first(tmp_path: Path) -> None:
    rows = accuracy_rows(replace(FRONTIER, suite=FOUR, questions=4).write(tmp_path))
    twin = replace(rows[0], row=replace(rows[0].row, role="control", cell="twin"))
    alone, beside = ({key: one.standing for key, one in frontier_of(found).items()} for found in (rows, [*rows, twin]))
    assert beside == alone


def around(mid: float, reach: float) -> Spread:
    return Spread(low=mid - reach, mid=mid, high=mid + reach)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1.0, 0.1, 0.5, 0.1)], ["yes"]),
        ([(1.0, 0.1, 0.5, 0.1), (2.0, 0.1, 0.8, 0.1)], ["no", "yes"]),
        ([(1.0, 0.1, 0.8, 0.1), (2.0, 0.1, 0.5, 0.1)], ["yes", "yes"]),
        ([(1.0, 0.6, 0.5, 0.1), (1.1, 0.6, 0.6, 0.1)], ["unsure", "unsure"]),  # every interval overlaps
        ([(1.0, 0.1, 0.5, inf), (2.0, 0.1, 0.5, inf)], ["no", "yes"]),
        ([(1.0, 0.1, 0.6, inf), (2.0, 0.1, 0.5, inf)], ["unsure", "yes"]),
        ([(1.0, 0.0, 0.5, 0.0), (1.0, 0.0, 0.5, 0.0)], ["unsure", "unsure"]),
    ],
)
def test_what_intervals_do_not_tell_apart_is_unsure(
    points: list[tuple[float, float, float, float]], expected: list[str]
) -> None:
    assert standings([(around(x, dx), around(y, dy)) for x, dx, y, dy in points]) == expected
