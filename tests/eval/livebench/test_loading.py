"""Reading questions: both layouts, releases, and what a malformed file is refused with."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ktbench.eval.livebench.graders import why_ungradable
from ktbench.eval.livebench.loading import RELEASE, absent, read_questions
from tests.eval.conftest import needs_shared_data
from tests.eval.livebench.questions import LIVEBENCH

ROW: dict[str, Any] = {
    "question_id": "a",
    "category": "math",
    "task": "olympiad",
    "turns": ["What?"],
    "ground_truth": "1,2",
    "livebench_release_date": "2024-06-24",
    "livebench_removal_date": "",
}
CASES = [
    {"input": "1\n", "output": "2\n", "testtype": "stdin"},
    {"input": "3", "output": "4", "testtype": "functional"},
]


def write(folder: Path, *rows: dict[str, Any] | str, name: str = "math__olympiad.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return folder


@pytest.mark.parametrize(
    "name", ["math__olympiad.jsonl", "questions/math__olympiad.jsonl", "math/olympiad/question.jsonl"]
)
def test_every_layout_is_read(tmp_path: Path, name: str) -> None:
    extra = {"system_prompt": "Be brief.", "required_temperature": 0.7, "subtask": "imo", "hardness": 0.3}
    (question,) = read_questions(write(tmp_path, ROW | extra, name=name))
    assert (question.category, question.task, question.prompt, question.truth) == ("math", "olympiad", "What?", "1,2")
    assert (question.system_prompt, question.temperature, question.subtask) == ("Be brief.", 0.7, "imo")


def test_a_release_holds_what_is_out_and_not_removed(tmp_path: Path) -> None:
    days = {"a": ("2024-06-24", "2024-08-31"), "b": ("2024-08-31", ""), "c": ("2025-04-02", ""), "d": ("", "")}
    rows = [
        ROW | {"question_id": key, "livebench_release_date": out, "livebench_removal_date": gone}
        for key, (out, gone) in days.items()
    ]
    write(tmp_path, *rows)
    ids = {release: "".join(q.question_id for q in read_questions(tmp_path, release)) for release in sorted(RELEASES)}
    assert ids == RELEASES


RELEASES = {"2024-06-23": "d", "2024-06-24": "ad", "2024-08-30": "ad", "2024-08-31": "bd", "2025-04-02": "bcd"}


@pytest.mark.parametrize("release", ["2024", "latest", "2024-13-01", "2024-11-25T00:00", "24-11-25", ""])
def test_a_release_that_is_no_date_is_refused(tmp_path: Path, release: str) -> None:
    with pytest.raises(ValueError, match=rf"release={release}: must be a date as 2024-11-25"):
        read_questions(write(tmp_path, ROW), release)


def test_tasks_are_chosen_by_name(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    write(tmp_path, ROW | {"question_id": "b", "task": "math_comp"}, name="math__math_comp.jsonl")
    assert [q.task for q in read_questions(tmp_path)] == ["math_comp", "olympiad"]
    assert [q.task for q in read_questions(tmp_path, tasks=["olympiad"])] == ["olympiad"]
    with pytest.raises(ValueError, match="no questions of the task sudoku; there are math_comp, olympiad"):
        read_questions(tmp_path, tasks=["sudoku"])


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no LiveBench questions; read are <category>__<task>.jsonl"):
        read_questions(tmp_path)
    with pytest.raises(ValueError, match="holds no question of LiveBench release 2024-01-01"):
        read_questions(write(tmp_path, ROW), "2024-01-01")
    with pytest.raises(ValueError, match="holds no question of LiveBench release 2024-01-01 of olympiad"):
        read_questions(tmp_path, "2024-01-01", ["olympiad"])


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('{"question_id": "b"', "is no JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('"\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1"), "expected a JSON object, got str"),
        (ROW | {"question_id": ""}, "question_id: expected str of length >= 1"),
        (ROW | {"question_id": 7}, "question_id: expected str, got int"),
        (ROW | {"turns": []}, "turns: expected array of length >= 1"),
        (ROW | {"turns": "What?"}, "turns: expected array, got str"),
        (ROW | {"turns": ["a", "b"]}, "turns: expected array of length <= 1"),
        (ROW | {"ground_truth": 3}, "ground_truth: expected"),
        (ROW | {"livebench_release_date": "June"}, "livebench_release_date=June: must be a date"),
        (ROW | {"required_temperature": "hot"}, "required_temperature: expected float | null, got str"),
        (ROW | {"task": "math_comp"}, "is a question of math/math_comp, in a file of math/olympiad"),
        (ROW | {"instruction_id_list": [1], "kwargs": [{}]}, "instruction_id_list[0]: expected str, got int"),
        (ROW | {"instruction_id_list": ["a"], "kwargs": []}, "kwargs: must be a list of 1 objects"),
        (ROW | {"tests": [{"input": "1"}]}, "tests[0]: object missing required field output"),
        (ROW | {"tests": ["1"]}, "tests[0]: expected object, got str"),
        (ROW | {"public_test_cases": "[1"}, "public_test_cases: neither JSON nor packed JSON"),
        (ROW | {"public_test_cases": "[1]"}, "public_test_cases: "),
        (ROW | {"private_test_cases": "nonsense"}, "private_test_cases: neither JSON nor packed JSON"),
        (ROW | {"original_json": "{"}, "is no JSON"),
    ],
)
def test_a_malformed_row_is_refused_with_file_and_line(tmp_path: Path, row: dict[str, Any] | str, what: str) -> None:
    write(tmp_path, ROW, "", row)
    with pytest.raises(ValueError, match=r"math__olympiad\.jsonl:3: ") as refused:
        read_questions(tmp_path)
    assert what in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_text_is_refused_with_its_line(tmp_path: Path) -> None:
    (write(tmp_path, ROW) / "math__olympiad.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n\xff\xfe{}\n")
    with pytest.raises(ValueError, match=r"math__olympiad\.jsonl:2: is not UTF-8 text"):
        read_questions(tmp_path)


def test_a_question_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="question a of olympiad is there twice"):
        read_questions(write(tmp_path, ROW, ROW))


def test_instructions_keep_their_arguments(tmp_path: Path) -> None:
    given = {"instruction_id_list": ["x:y", "z"], "kwargs": [{"n": 1, "m": None}, {}], "ground_truth": None}
    (question,) = read_questions(write(tmp_path, ROW | given))
    assert (question.instruction_ids, question.instruction_kwargs) == (("x:y", "z"), ({"n": 1, "m": None}, {}))
    with pytest.raises(ValueError, match="math/olympiad a: no ground truth"):
        _ = question.truth


def test_tests_given_as_lists_are_read(tmp_path: Path) -> None:
    tests = [{"input": "1", "output": "2"}]
    given = {"tests": tests, "test_type": "functional", "func_name": "f", "tests_total": 9, "partial_solution": "def"}
    (question,) = read_questions(write(tmp_path, ROW | given))
    assert [(test.given, test.wanted, test.functional) for test in question.tests] == [("1", "2", True)]
    assert (question.tests_total, question.func_name, question.partial_solution) == (9, "f", "def")


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_tests_packed_as_upstream_does_are_read(tmp_path: Path) -> None:
    original = {"metadata": json.dumps({"func_name": "g"})}
    given = {"public_test_cases": json.dumps(CASES[:1]), "private_test_cases": packed(json.dumps(CASES[1:]))}
    (question,) = read_questions(write(tmp_path, ROW | given | {"original_json": original}))
    assert [(test.given, test.wanted, test.functional) for test in question.tests] == [
        ("1\n", "2\n", False),
        ("3", "4", True),
    ]
    assert (question.tests_total, question.func_name) == (2, "g")


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("value", [Trap(), CASES, 7])
def test_a_pickle_is_never_run(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match="jsonl:1: private_test_cases: "):
        read_questions(write(tmp_path, ROW | {"private_test_cases": packed(value)}))


def test_packed_tests_of_any_size_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.eval.livebench.question.LIMIT_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        read_questions(write(tmp_path, ROW | {"private_test_cases": packed("[" + " " * 5000 + "]")}))


def test_what_an_index_lists_and_no_row_has_is_counted(tmp_path: Path) -> None:
    write(tmp_path, ROW, ROW | {"question_id": "b", "livebench_removal_date": "2024-08-31"})
    assert absent(tmp_path, RELEASE, "math", "olympiad") == ""
    index = tmp_path / "release_2024-08-31_index.json"
    index.write_text(json.dumps([{"task": "math/olympiad", "question_ids": ["a", "b", "c"]}]))
    assert absent(tmp_path, "2024-08-30", "math", "olympiad") == ""
    for release in ("2024-08-31", RELEASE):
        words = "1 of 3 questions of release 2024-08-31 have no row here"
        assert absent(tmp_path, release, "math", "olympiad") == words
    later = [{"task": "math/olympiad", "question_ids": ["a"]}]
    (tmp_path / "release_2024-11-25_index.json").write_text(json.dumps(later))
    assert absent(tmp_path, RELEASE, "math", "olympiad") == ""
    index.write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"release_2024-08-31_index\.json: is no list"):
        absent(tmp_path, "2024-08-31", "math", "olympiad")


@needs_shared_data
def test_the_release_of_2024_08_31_has_its_1000_questions() -> None:
    held = read_questions(LIVEBENCH, "2024-08-31")
    places = Counter((question.category, question.task) for question in held)
    assert (len(places), len({category for category, _ in places})) == (18, 6)
    assert len(held) == 989
    found = Counter(f"{one.category}/{one.task}" for one in held if not why_ungradable(one, confirm_unsafe=True))
    assert found.total() == 899
    index = json.loads((LIVEBENCH / "release_2024-08-31_index.json").read_text())
    assert {row["task"]: found[row["task"]] for row in index} == {row["task"]: row["gradable"] for row in index}
    lacking = {task: words for category, task in places if (words := absent(LIVEBENCH, RELEASE, category, task))}
    assert lacking == {"LCB_generation": "11 of 78 questions of release 2024-08-31 have no row here"}
    assert sum(question.is_partly_tested for question in held) == 58


@needs_shared_data
def test_the_release_of_2024_11_25_has_the_new_puzzles_and_instructions() -> None:
    old, new = (Counter(q.task for q in read_questions(LIVEBENCH, release)) for release in ("2024-08-31", "2024-11-25"))
    assert old == new
    changed = {q.task for q in read_questions(LIVEBENCH) if q.released == "2024-11-25"}
    assert changed == {"zebra_puzzle", "paraphrase", "simplify", "story_generation", "summarize"}
