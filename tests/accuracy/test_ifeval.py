"""IFEval's file is read or refused by line, and its four accuracies are those of its authors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ktbench.accuracy.ifeval import instruction_accuracy, judge, loosened, prompt_accuracy, prompt_of, read_prompts

NO_COMMA, QUOTATION, END = "punctuation:no_comma", "startend:quotation", "startend:end_checker"
ROW: dict[str, Any] = {
    "key": 1000,
    "prompt": "Write.",
    "instruction_id_list": [NO_COMMA, END],
    "kwargs": [{}, {"end_phrase": "The end.", "num_words": None}],
}


def written(folder: Path, *rows: object) -> Path:
    path = folder / "input_data.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_prompts_are_read_in_order(tmp_path: Path) -> None:
    first, second = read_prompts(written(tmp_path, ROW, ROW | {"key": "b", "more": 1}))
    assert (first.key, second.key) == ("1000", "b")
    assert (first.text, first.ids) == ("Write.", (NO_COMMA, END))
    assert first.kwargs == tuple(ROW["kwargs"])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[" * 200_000, "recursion"),
        ([], "must be an object with key, prompt"),
        (ROW | {"key": None}, "key=None: must be a number or text"),
        (ROW | {"key": True}, "key=True: must be a number or text"),
        (ROW | {"prompt": " "}, "prompt: must be text that is not blank"),
        (ROW | {"prompt": 3}, "prompt: must be text"),
        (ROW | {"instruction_id_list": NO_COMMA}, "instruction_id_list: must be a list of texts that is not empty"),
        (ROW | {"instruction_id_list": []}, "instruction_id_list: must be a list of texts that is not empty"),
        (ROW | {"instruction_id_list": [NO_COMMA, 1]}, "instruction_id_list: must be a list of texts"),
        (ROW | {"kwargs": [{}, None]}, "kwargs: must be a list of objects"),
        (ROW | {"kwargs": [{}]}, "2 instructions, but arguments for 1"),
        (ROW | {"kwargs": [{}, {}]}, f"{END}: end_phrase is missing"),
        (ROW | {"instruction_id_list": [NO_COMMA, "startend:else"]}, "startend:else is not known"),
        (ROW, "key=1000: an earlier row has it"),
    ],
)
def test_a_malformed_row_is_refused_by_file_and_line(tmp_path: Path, row: object, why: str) -> None:
    path = written(tmp_path, ROW, row)
    with pytest.raises(ValueError, match=why) as refusal:
        read_prompts(path)
    assert str(refusal.value).startswith(f"{path}:2: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"key": "\xff"}\n')
    with pytest.raises(ValueError, match=r"data.jsonl:1: .*utf-8"):
        read_prompts(path)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no rows"):
        read_prompts(written(tmp_path))


@pytest.mark.parametrize(
    ("answer", "strict", "loose"),
    [
        ("A tale. The end.", (True, True), (True, True)),
        ("A tale, The end.", (False, True), (False, True)),
        ("Sure, here:\nA tale. The end.", (False, True), (True, True)),
        ("A tale. The end.\nBye, all!", (False, False), (True, True)),
        ("Sure, here:\nA tale. **The end.**\nBye!", (False, False), (True, True)),
        ("A tale, said\n**The end.**", (False, False), (True, True)),
        ("\n", (False, False), (False, False)),
    ],
)
def test_strict_and_loose(answer: str, strict: tuple[bool, ...], loose: tuple[bool, ...]) -> None:
    followed = judge(prompt_of(ROW), answer)
    assert (followed.strict, followed.loose) == (strict, loose)


def test_loosened_gives_eight_variants_each_once() -> None:
    assert set(loosened("*a*\nb*\n*c")) == {"*a*\nb*\n*c", "b*\n*c", "*a*\nb*", "b*", "a\nb\nc", "b\nc", "a\nb", "b"}
    assert loosened("a") == ("a", "")


def test_accuracies() -> None:
    followed = [(True, True), (True, False, False), (True,)]
    assert prompt_accuracy(followed) == pytest.approx(2 / 3)
    assert instruction_accuracy(followed) == pytest.approx(4 / 6)
