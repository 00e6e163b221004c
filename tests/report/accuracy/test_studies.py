"""Studies over formats and over speed: what is compared with what, grids and Pareto points."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.report.accuracy_table import accuracy_table, grids_below
from ktbench.report.data import accuracy_json_text
from ktbench.report.write import write_report
from ktbench.results import Run
from ktbench.results.accuracy import accuracy_rows
from tests.report.accuracy_stores import (
    BASE,
    FOUR,
    FRONTIER,
    PRECISION,
)


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


def test_speed_and_score_stand_beside_each_other(tmp_path: Path) -> None:
    run = replace(FRONTIER, suite=FOUR, arms=FRONTIER.arms[:2], questions=6, formats=FRONTIER.formats[:2]).write(
        tmp_path
    )
    table = accuracy_table(run, accuracy_rows(run))
    headings = [column.heading for column in table.columns]
    assert headings[:4] == ["arm", "precision", "speed (tokens/s)", "Pareto"]
    assert {cells[3] for cells in table.cells} <= {"yes", "no"}
    assert [path.name for path in write_report(run, ["md"])] == ["accuracy.md", "table.md"]
    untimed = replace(FRONTIER, suite=FOUR, arms=FRONTIER.arms[:2], questions=6, timed=0, run="untimed").write(tmp_path)
    assert any("was not timed" in note for note in accuracy_table(untimed, accuracy_rows(untimed)).notes)


def test_none_is_better_and_faster_than_a_pareto_point(tmp_path: Path) -> None:
    run = replace(FRONTIER, suite=FOUR, questions=12).write(tmp_path)
    rows = accuracy_rows(run)
    data = json.loads(accuracy_json_text(run, rows, accuracy_table(run, rows)))
    points = [(row["tokens_per_s"], row["results"][0]["score"]["mid"], row["is_pareto"]) for row in data["rows"]]
    for speed, score, is_pareto in points:
        beaten = any(s >= speed and v >= score and (s, v) != (speed, score) for s, v, _ in points)
        assert is_pareto is not beaten
