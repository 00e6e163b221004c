"""Runs are found by folder and by name; answers count of tasks that ended well, each as it was last given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktbench.results import LOG_NAME, Log, Run, read_run
from ktbench.results.find import find_run
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Environment, Header, Outcome, Part, SampleResult, TaskResult
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.tiny import tiny_cell

CELL = tiny_cell("base")
SUITE = SuiteSpec(name="s", tasks=(TaskSpec(name="sum", source="nano/sum"), TaskSpec(name="sort", source="nano/sort")))


def scored(task: str, question: str, value: float | None, **more: object) -> SampleResult:
    return SampleResult(cell=CELL.key, task=task, question=question, value=value, **more)  # type: ignore[arg-type]


def asked(task: str, outcome: Outcome = Outcome.OK) -> TaskResult:
    return TaskResult(
        cell=CELL.key, label="base", task=task, outcome=outcome, provenance="measured",
        code_id="c", env_id="e", started="",
    )  # fmt: skip


def run_of(folder: Path, *facts: SampleResult | TaskResult) -> Run:
    header = Header(
        run="r", title="t", ablation="a", created="", command=(), parts=(Part(name="", title="t", baseline="base"),),
        cells=(CELL,), measure=MeasureSpec(), code_id="c", env_id="e", suite=SUITE,
    )  # fmt: skip
    log = Log(folder)
    log.append(header, Environment(env_id="e", code_id="c"), *facts)
    log.close()
    return read_run(folder)


def test_a_log_gives_back_what_was_asked_and_answered(tmp_path: Path) -> None:
    facts = (scored("sum", "q1", 1.0, tokens=3, answer="Ünï\ncode"), scored("sum", "q2", None, why="no tests"))
    run = run_of(tmp_path, *facts, asked("sum"))
    assert run.header.suite == SUITE
    assert run.answers() == {(CELL.key, "sum"): facts}


def test_answers_of_a_task_that_did_not_end_do_not_count(tmp_path: Path) -> None:
    run = run_of(tmp_path, scored("sum", "q", 1.0), asked("sum"), scored("sort", "q", 1.0))
    assert [task for _, task in run.answers()] == ["sum"]


def test_a_task_that_failed_later_counts_no_more_and_one_asked_again_counts_as_last_answered(tmp_path: Path) -> None:
    again = scored("sum", "q", 0.0)
    other = scored("sum", "q", 0.5, sample=1)
    run = run_of(
        tmp_path, scored("sum", "q", 1.0), other, asked("sum"), asked("sort"), again, asked("sum"),
        asked("sort", Outcome.CRASHED),
    )  # fmt: skip
    assert run.answers() == {(CELL.key, "sum"): (again, other)}
    assert run.ends()[CELL.key, "sort"].outcome is Outcome.CRASHED


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run below `runs/`, which has a folder of its own."""
    (tmp_path / "runs" / "decode" / "report").mkdir(parents=True)
    (tmp_path / "runs" / "decode" / LOG_NAME).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_found_by_its_name_and_by_its_folder(home: Path) -> None:
    for name in ("decode", "runs/decode", "./runs/decode/", "latest"):
        assert find_run(name) == Path("runs/decode")
    with pytest.raises(RequestError, match="decoed: no such run, did you mean decode"):
        find_run("decoed")


@pytest.mark.parametrize(("here", "name"), [("runs/decode", "."), ("runs/decode", "./"), ("runs/decode/report", "..")])
def test_the_run_that_one_stands_in_has_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, here: str, name: str
) -> None:
    monkeypatch.chdir(home / here)
    found = find_run(name)
    assert found.name == "decode" and found.samefile(home / "runs" / "decode")
