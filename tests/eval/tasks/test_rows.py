"""Local files of questions: errors name file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ktbench.eval.tasks.rows import csv_rows, find_file, find_folder, json_lines, json_list

FIELDS = {"question": str, "answer": int}
GOOD = '{"question": "q", "answer": 1}'


def refuse_zero(row: dict[str, object]) -> None:
    if row["answer"] == 0:
        raise ValueError("answer: must not be 0")


def written(folder: Path, text: str | bytes, name: str = "test.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lines_are_read_as_they_are(tmp_path: Path) -> None:
    found = json_lines(written(tmp_path, f'{GOOD}\n\n{{"question": "ü\\n", "answer": 2, "more": []}}'), FIELDS)
    assert found == [{"question": "q", "answer": 1}, {"question": "ü\n", "answer": 2, "more": []}]
    packed = written(tmp_path, gzip.compress(GOOD.encode()), "test.jsonl.gz")
    assert json_lines(packed, FIELDS) == [{"question": "q", "answer": 1}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is no JSON: "),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"question": "q"}', "no field answer; wanted are question, answer"),
        (b'{"question": 1, "answer": 1}', "question: expected str, got int"),
        (b'{"question": "q", "answer": true}', "answer: expected int, got bool"),
        (b'{"question": "q", "answer": 0}', "answer: must not be 0"),
        (b"\xff", "is not UTF-8 text"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = written(tmp_path, GOOD.encode() + b"\n\n" + line + b"\n")
    with pytest.raises(ValueError) as error:
        json_lines(path, FIELDS, refuse_zero)
    assert str(error.value).startswith(f"{path}:3: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[{GOOD},\n{GOOD}", ":2: is no JSON: "),
        (f"[{GOOD},\n\n{{}}]", ": row 2: no field question"),
        (f"[{GOOD},\n1]", ": row 2: expected a JSON object, got int"),
        (f"[{GOOD},\n{{]", ":2: is no JSON: "),
        (GOOD, ": expected a JSON list, got dict"),
        ("[]", ": holds no questions"),
        (f"[{GOOD}] more", ":1: "),
    ],
)
def test_a_malformed_list_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text, "train.json")
    with pytest.raises(ValueError) as error:
        json_list(path, FIELDS)
    assert str(error.value).startswith(f"{path}{message}")


def test_a_list_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path, f" [ {GOOD} ,\n {GOOD}\n]\n", "train.json")
    assert json_list(path, FIELDS) == [{"question": "q", "answer": 1}] * 2


def test_fields_of_csv_may_hold_line_breaks(tmp_path: Path) -> None:
    path = written(tmp_path, 'question,answer\r\n"two\nlines, ""quoted""",1\r\n\nq,2\n', "test.csv")
    assert csv_rows(path, ("question", "answer")) == [
        {"question": 'two\nlines, "quoted"', "answer": "1"},
        {"question": "q", "answer": "2"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q,1\n", ":1: the first line must be question,answer"),
        ("", ":1: the first line must be question,answer"),
        ('question,answer\n"a\nb",1\nq\n', ":4: expected 2 fields, got 1"),
        ('question,answer\nq,1\n"q"x,1\n', ":3: is no CSV: "),
        ("question,answer\nq,0\n", ":2: no zero"),
        ("question,answer\n", ": holds no questions"),
    ],
)
def test_malformed_csv_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    def no_zero(row: dict[str, object]) -> None:
        if row["answer"] == "0":
            raise ValueError("no zero")

    path = written(tmp_path, text, "test.csv")
    with pytest.raises(ValueError) as error:
        csv_rows(path, ("question", "answer"), no_zero)
    assert str(error.value).startswith(f"{path}{message}")


def test_files_without_questions_and_broken_gzip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no questions"):
        json_lines(written(tmp_path, "\n"), FIELDS)
    for content in (b"no gzip", gzip.compress(GOOD.encode() * 99)[:-9]):
        with pytest.raises(ValueError, match="is no whole gzip file"):
            json_lines(written(tmp_path, content, "cut.jsonl.gz"), FIELDS)


def test_the_folder_of_one_data_set_or_of_several(tmp_path: Path) -> None:
    own = tmp_path / "gsm8k"
    own.mkdir()
    written(own, GOOD)
    assert find_folder(str(tmp_path), "gsm8k", ["test.jsonl"]) == own
    assert find_folder(str(own), "gsm8k", ["test.jsonl"]) == own
    assert find_file(str(tmp_path), "gsm8k", ["none.jsonl", "test.jsonl"]) == own / "test.jsonl"
    with pytest.raises(ValueError, match=r"no gsm8k here; wanted are train.jsonl and test.jsonl, there or in gsm8k/"):
        find_folder(str(tmp_path), "gsm8k", ["train.jsonl", "test.jsonl"])
    with pytest.raises(ValueError, match=r"no gsm8k here; wanted is a or b, there or in gsm8k/"):
        find_file(str(tmp_path), "gsm8k", ["a", "b"])
