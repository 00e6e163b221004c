"""A suite and what the command line says about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ktbench.cli import main
from ktbench.config import ModelFiles, compose, freeze, suite_names
from ktbench.resources import data_folder
from ktbench.results.command import eval_command
from ktbench.spec.errors import RequestError
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.tiny import CONFIG


def suite(*words: str) -> SuiteSpec | None:
    return freeze(compose(["model=tiny", *words])).suite


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_that_ships_composes(name: str) -> None:
    found = suite(f"+suite={name}")
    assert found is not None
    assert found.name == name
    assert found == suite(f"suite={name}")


def test_without_a_suite_nothing_is_asked() -> None:
    assert suite() is None


def test_the_command_line_has_its_say() -> None:
    found = suite("+suite=nano", "limit=5", "data_dir=somewhere", "confirm_unsafe=true", "suite.batch=7")
    assert found is not None
    assert (found.limit, found.data_dir, found.confirm_unsafe, found.batch) == (5, "somewhere", True, 7)


def test_a_part_that_asks_questions_is_run_by_itself() -> None:
    words = ["+ablation=decode,accuracy_deferral", "sweep.name=both"]
    with pytest.raises(RequestError, match="sweep.parts: accuracy_deferral is an evaluation, run it by itself"):
        freeze(compose(words), ModelFiles(checkpoints={"evals/nano": CONFIG}))


def test_an_ablation_of_a_suite_can_do_without_it() -> None:
    words = ["+ablation=formats", "model=tiny"]
    whole, without = (freeze(compose([*words, *more])) for more in ((), ("suite=null",)))
    assert whole.suite is not None and without.suite is None
    assert whole.parts == without.parts


def test_tasks_narrow_a_suite() -> None:
    whole, math = suite("+suite=nano"), suite("+suite=nano", "tasks=[math]")
    assert whole is not None
    assert math is not None
    assert math.tasks == tuple(task for task in whole.tasks if task.category == "math")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+suite=nanu"], "suite=nanu: unknown, did you mean nano? (`ktbench list suites` has all)"),
        (["limit=5"], "limit: is for a suite, name one with"),
        (["tasks=[math]"], "tasks: is for a suite"),
        (["+suite=nano", "tasks=[poetry]"], "tasks=poetry: no such task or category; allowed are"),
        (["+suite=nano", "limit=0"], "limit=0"),
        (["+suite=nano", "limit=many"], "limit: expected"),
        (["+suite=nano", "suite.batches=2"], "suite.batches: unknown key, did you mean suite.batch?"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(RequestError) as error:
        suite(*words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


OWN: dict[str, Any] = {
    "name": "mine",
    "average": "tasks",
    "seed": 3,
    "tasks": [{"name": "sort", "source": "nano/sort", "shots": 2}, {"name": "x", "source": "lm_eval/arc_easy"}],
}


def written(folder: Path, content: Any) -> str:
    file = folder / "my suite.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return f"+suite='{file}'"


def test_a_suite_by_its_file(tmp_path: Path) -> None:
    word = written(tmp_path, OWN)
    found = suite(word, "limit=5", "suite.batch=7", "tasks=[sort]")
    sort = TaskSpec(name="sort", source="nano/sort", shots=2)
    assert found == SuiteSpec(name="mine", average="tasks", seed=3, tasks=(sort,), limit=5, batch=7)
    assert suite(word.removeprefix("+")) == suite(word)
    written(tmp_path, OWN | {"seed": 4})
    again = suite(word)
    assert again is not None
    assert again.seed == 4


def test_an_ablation_takes_a_suite_by_its_file(tmp_path: Path) -> None:
    words = ["+ablation=accuracy_deferral", "model=tiny", written(tmp_path, OWN)]
    found = freeze(compose(words)).suite
    assert found is not None
    assert found.name == "mine"


def test_a_shipped_suite_may_be_copied_but_not_changed_under_its_name(tmp_path: Path) -> None:
    text = (data_folder("evals") / "nano.yaml").read_text()
    assert suite(written(tmp_path, text)) == suite("+suite=nano")
    with pytest.raises(RequestError, match="nano is a shipped suite with other content, change the name"):
        suite(written(tmp_path, yaml.safe_load(text) | {"seed": 12345}))


def test_the_command_of_a_row_names_the_file(tmp_path: Path) -> None:
    word = written(tmp_path, OWN)
    request = freeze(compose(["model=tiny", word]))
    assert request.suite is not None
    command = shlex.split(eval_command(request.parts[0].spec, request.suite, ["python", "-m", "ktbench", "eval", word]))
    assert command[4] == word
    assert suite(command[4]) == request.suite


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2", "is not YAML of a suite"),
        ("- 1", "must be a mapping with the keys name, "),
        ("", "must be a mapping with the keys name"),
        (OWN | {"taks": []}, "unknown key 'taks', did you mean tasks?"),
        ({"name": "mine"}, "the key tasks is missing"),
        (OWN | {"tasks": "all"}, "tasks must be a list"),
        (OWN | {"tasks": ["sort"]}, "task 1: must be a mapping"),
        (OWN | {"tasks": [{"name": "sort"}]}, "task 1: the key source is missing"),
        (OWN | {"tasks": [OWN["tasks"][0], {"name": "y", "source": "nano/sum", "shot": 1}]}, "task 2: unknown key"),
        (OWN | {"tasks": [{"name": "y", "source": "nano/sum", "shots": -1}]}, "suite.tasks.y.shots=-1"),
        (OWN | {"average": "median"}, "average: invalid enum value 'median'; allowed are categories, tasks"),
        (OWN | {"tasks": []}, "has no tasks"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_suite_is_one_line_and_exit_2(
    content: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    assert main(["plan", f"+suite={file}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert f"suite={file}" in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("./no.yaml", "."):
        assert main(["eval", f"+suite={file}"]) == 2
        error = capsys.readouterr().err
        assert f"suite={file}" in error
        assert error.count("\n") == 1
