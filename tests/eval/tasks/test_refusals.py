"""What there is not, and a hub that does not answer, are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from ktbench.eval.sandbox.running import SandboxUnavailable
from ktbench.eval.tasks import harness, sources
from ktbench.eval.tasks.harness import hub_rows
from tests.eval.tasks.evaluation import evaluated, loaded, replying, values
from tests.eval.tasks.local import OWN, write_lines


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nanu/addition", "no such source; allowed are nano/TASK, "),
        ("nano", "no such task; allowed are brackets, trace, "),
        ("nano/subtraction", "no such task; allowed are brackets, trace, "),
        ("gsm8k/main", "no such task; allowed are gsm8k"),
        ("mmlu", "name a task, as mmlu/TASK"),
        ("paper/humaneval", "no such source, did you mean humaneval?"),
        ("mbpp", "answers are programs, run in a sandbox only with confirm_unsafe=true"),
        ("mmlu/poetry", "no mmlu here; wanted are dev/poetry_dev.csv and test/poetry_test.csv, there or in mmlu/"),
        ("livebench/math/poetry", "holds no questions of the task poetry; there are typos, web_of_lies_v2"),
        ("livebench/math/typos", "release 2024-11-25 has no such questions"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(source: str, message: str, data: Path) -> None:
    with pytest.raises(ValueError) as error:
        loaded(source, data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "shots", "held"),
    [("gsm8k_cot", 9, 8), ("mmlu/anatomy", 6, 5), ("humaneval", 1, 0), ("strategyqa", 5, 4)],
)
def test_more_worked_examples_than_there_are(source: str, shots: int, held: int, data: Path) -> None:
    with pytest.raises(ValueError, match=f"suite.tasks.t.shots={shots}: there are {held} worked examples"):
        loaded(source, data, shots=shots, confirm_unsafe=True)


def test_a_machine_without_a_sandbox_runs_no_programs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unprotected() -> tuple[str, ...]:
        raise SandboxUnavailable("no Landlock here")

    monkeypatch.setattr(sources, "sandbox_mechanisms", unprotected)
    with pytest.raises(ValueError, match="confirm_unsafe=true: no Landlock here"):
        loaded("humaneval", data, confirm_unsafe=True)


def test_questions_of_the_same_name_are_refused(tmp_path: Path) -> None:
    row = {"key": 1, "prompt": "Go.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    write_lines(tmp_path / "input_data.jsonl", [row, row])
    with pytest.raises(ValueError, match="two questions have the same key"):
        loaded("ifeval", tmp_path)


@pytest.mark.parametrize("source", ["gsm8k", "mmlu/anatomy", "mmlu_pro/law", "livebench/math/olympiad", "lm_eval/own"])
def test_a_hub_that_does_not_answer_is_one_line(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        def load(self, name: str) -> None:
            datasets.load_dataset(name)

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(harness, "_manager", lambda name: Manager())
    monkeypatch.setattr(harness, "_config", lambda name: OWN)
    with pytest.raises(ValueError) as error:
        loaded(source, None)
    assert "cannot be loaded from the hub (Couldn't reach the hub); give data_dir=FOLDER" in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_of_the_hub_are_asked_as_local_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {
        split: [{"question": f"{split} {i}?", "answer": f"#### {i}"} for i in range(9)] for split in ("train", "test")
    }
    live = [
        {"question_id": str(i), "category": "math", "task": "olympiad", "turns": ["?"], "ground_truth": "1"}
        for i in range(2)
    ]
    monkeypatch.setattr(
        datasets, "load_dataset", lambda path, name=None: {"test": live} if path == "livebench/math" else splits
    )
    hub_rows.cache_clear()
    try:
        assert values(evaluated("gsm8k", None, replying("#### 4"), shots=2)) == [float(i == 4) for i in range(9)]
        assert len(loaded("livebench/math/olympiad", None).questions) == 2
    finally:
        hub_rows.cache_clear()
