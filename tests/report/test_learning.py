"""The report of what trainings learned: table, files, page and figure."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.lines import Line2D

from ktbench.cli.show import show
from ktbench.report.documents import Document, documents_of
from ktbench.report.write import write_report
from ktbench.results import Run
from tests.report.drawn import assert_inks_apart
from tests.report.learned import ALIKE, BASE, BROKEN, STEPS, WORSE, LearningStore

ARMS = (BASE, BROKEN, ALIKE, WORSE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return LearningStore(arms=ARMS).write(tmp_path_factory.mktemp("runs"))


def documents(run: Run) -> tuple[Document, Document]:
    learning, table = documents_of(run)
    assert (learning.kind, table.kind) == ("learning", "table")
    return learning, table


def test_the_table_has_a_line_for_each_arm_and_marks_what_is_apart(run: Run) -> None:
    learning, cells = documents(run)
    table = learning.table
    lines = {cells[0]: dict(zip(table.headings, cells, strict=True)) for cells in table.cells}
    assert [*lines] == [arm.label for arm in ARMS]
    assert lines["+v+d int4_g32"]["held-out loss, difference"].endswith("*")
    assert not lines["+v+d int8"]["held-out loss, difference"].endswith("*")
    assert lines["base"]["held-out loss, difference"] == "—"
    assert lines["+v+d"]["seeds"] == "2"
    assert any("step 7 is nan" in note for note in table.notes)
    assert len(cells.table.cells) == len(ARMS) * len(BASE.after)


def test_the_figure_is_of_what_was_learned_where_the_sweep_asks_for_it(run: Run, tmp_path: Path) -> None:
    assert [one.has_figure for one in documents(run)] == [True, False]
    speeds = LearningStore(figure="bars", run="speeds").write(tmp_path)
    assert [one.has_figure for one in documents(speeds)] == [False, True]


def test_curves_run_over_all_steps_and_differences_lie_around_nothing(run: Run) -> None:
    figure = documents(run)[0].draw()
    left, right = figure.axes
    curves = [line for line in left.lines if isinstance(line, Line2D)]
    assert len(curves) == len(ARMS)
    assert {len(line.get_xdata()) for line in curves} == {STEPS}  # type: ignore[arg-type]
    assert left.get_yscale() == "log"
    assert right.get_ylim()[0] < 0 < right.get_ylim()[1]
    assert_inks_apart(figure)


def test_one_arm_alone_has_one_panel(tmp_path: Path) -> None:
    arms = (replace(BASE, after={0: BASE.after[0]}),)
    learning, _ = documents(LearningStore(arms=arms).write(tmp_path))
    (axes,) = learning.draw().axes
    assert len(axes.lines) == 1


def test_without_a_training_that_ended_the_figure_says_why(tmp_path: Path) -> None:
    arms = (replace(BASE, fails=dict.fromkeys(BASE.after, "killed")),)
    learning, _ = documents(LearningStore(arms=arms).write(tmp_path))
    assert "killed" in " ".join(learning.draw().caption)


def test_files_have_every_seed(run: Run) -> None:
    names = {path.name for path in write_report(run)}
    assert {"learning.md", "learning.csv", "learning.json", "learning.tex", "figure.svg", "page.html"} <= names
    folder = run.folder / "report"
    with (folder / "learning.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["metric"] == "exact"]
    of = {(line["label"], line["seed"]): line for line in lines}
    assert float(of["base", "1"]["value"]) == 0.70
    assert float(of["+v+d int4_g32", ""]["difference"]) == pytest.approx((0.6 + 0.55 + 0.58 - 0.75 - 0.7 - 0.72) / 3)
    content = json.loads((folder / "learning.json").read_text())
    assert [len(one["trainings"]) for one in content["learned"]] == [3, 2, 3, 3]
    page = (folder / "page.html").read_text()
    assert "difference to base (nats/token)" in page and "step 7 is nan" in page
    with (folder / "table.csv").open(newline="") as file:
        rows = [line for line in csv.DictReader(file) if line["label"] == "base"]
    assert [float(row["exact"]) for row in rows] == [0.75, 0.70, 0.72]


def test_the_terminal_shows_the_table(run: Run, no_files: None, capsys: pytest.CaptureFixture[str]) -> None:
    show(run)
    said = capsys.readouterr().out
    assert "held-out loss, difference" in said
