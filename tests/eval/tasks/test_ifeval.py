"""IFEval's rows are read or refused by line, and an answer is right where it follows every instruction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.eval.tasks.evaluation import evaluated, loaded, replying, values

NO_COMMA, END = "punctuation:no_comma", "startend:end_checker"
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


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "is no JSON"),
        ([], "expected a JSON object"),
        (ROW | {"key": None}, "key=None: must be a number or text"),
        (ROW | {"key": True}, "key=True: must be a number or text"),
        (ROW | {"prompt": " "}, "prompt: must be text that is not blank"),
        (ROW | {"prompt": 3}, "prompt: expected str, got int"),
        (ROW | {"instruction_id_list": NO_COMMA}, "instruction_id_list: expected list, got str"),
        (ROW | {"instruction_id_list": []}, "instruction_id_list: must be a list of texts that is not empty"),
        (ROW | {"instruction_id_list": [NO_COMMA, 1]}, "instruction_id_list: must be a list of texts"),
        (ROW | {"kwargs": [{}, None]}, "kwargs: must be a list of objects"),
        (ROW | {"kwargs": [{}]}, "2 instructions, but arguments for 1"),
        (ROW | {"kwargs": [{}, {}]}, f"{END}: end_phrase is missing"),
        (ROW | {"instruction_id_list": [NO_COMMA, "startend:else"]}, "startend:else is not known"),
    ],
)
def test_a_malformed_row_is_refused_by_file_and_line(tmp_path: Path, row: object, why: str) -> None:
    path = written(tmp_path, ROW, row)
    with pytest.raises(ValueError, match=why) as refusal:
        loaded("ifeval", tmp_path)
    assert str(refusal.value).startswith(f"{path}:2: ")


def test_all_instructions_have_to_be_followed(tmp_path: Path) -> None:
    written(tmp_path, ROW, ROW | {"key": "b", "instruction_id_list": [NO_COMMA], "kwargs": [{}], "more": 1})
    answers = evaluated("ifeval", tmp_path, replying("A tale. The end."))
    assert [(one.question, one.value) for one in answers] == [("1000", 1.0), ("b", 1.0)]
    assert values(evaluated("ifeval", tmp_path, replying("A tale."))) == [0.0, 1.0]
    assert values(evaluated("ifeval", tmp_path, replying("A tale, The end."))) == [0.0, 0.0]
    assert "languages detected by" in loaded("ifeval", tmp_path).built.setting
