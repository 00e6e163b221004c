"""Small made-up data sets in the layouts of the published ones."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MBPP_CODE = "def add_{0}(a, b):\r\n  return a + b + {0}"


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all(folder: Path) -> Path:
    """Every data set, each in the folder of its name."""
    for write in (_gsm8k, _mmlu, _mmlu_pro, _humaneval, _mbpp, _strategyqa, _ifeval, _livebench):
        write(folder)
    return folder


def _gsm8k(folder: Path) -> None:
    for split, count in (("train", 9), ("test", 10)):
        rows = [
            {"question": f"{split}: how many are {i} and 1?", "answer": f"{i}+1=<<{i}+1={i % 5}>>\n#### {i % 5}"}
            for i in range(count)
        ]
        write_lines(folder / "gsm8k" / f"{split}.jsonl", rows)


def _mmlu(folder: Path) -> None:
    for split, count in (("dev", 5), ("test", 9)):
        path = folder / "mmlu" / split / f"anatomy_{split}.csv"
        path.parent.mkdir(parents=True)
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            rows.writerows(
                [f"{split}, question {i},\nsecond line?", "a", "b", "c, d", '"e"', i % 4] for i in range(count)
            )


def _mmlu_pro(folder: Path) -> None:
    for split, count in (("validation", 5), ("test", 6)):
        rows = [
            {
                "question_id": i,
                "question": f"{split} {category} {i}?",
                "options": ["x", "y", "z"],
                "answer": "ABC"[i % 3],
                "answer_index": i % 3,
                "cot_content": f"A: Let's think step by step. The answer is ({'ABC'[i % 3]}).",
                "category": category,
            }
            for i in range(count)
            for category in ("computer science", "law")
        ]
        write_lines(folder / "mmlu_pro" / f"{split}.jsonl", rows)


def _humaneval(folder: Path) -> None:
    rows = [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": f'def add_{i}(a, b):\n    """The sum of a, b and {i}."""\n',
            "entry_point": f"add_{i}",
            "canonical_solution": f"    return a + b + {i}\n",
            "test": f"def check(candidate):\n    assert candidate(2, 3) == {5 + i}\n",
        }
        for i in range(4)
    ]
    path = folder / "humaneval" / "HumanEval.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def _mbpp(folder: Path) -> None:
    rows = [
        {
            "text": f"Write a function to add two numbers and {i}.",
            "code": MBPP_CODE.format(i),
            "task_id": i,
            "test_setup_code": "",
            "test_list": [f"assert add_{i}({n}, 1) == {n + 1 + i}" for n in range(3)],
            "challenge_test_list": [],
        }
        for i in (*range(1, 16), 601)
    ]
    write_lines(folder / "mbpp" / "mbpp.jsonl", rows)


def _strategyqa(folder: Path) -> None:
    questions = ["Do hamsters provide food for any animals?", *(f"Is {i} even?" for i in range(6))]
    rows = [{"qid": f"q{i}", "question": one, "answer": i % 2 == 1} for i, one in enumerate(questions)]
    path = folder / "strategyqa" / "strategyqa_train.json"
    path.parent.mkdir()
    path.write_text(json.dumps(rows, indent=1))


def _ifeval(folder: Path) -> None:
    rows = [
        {
            "key": 1000 + i,
            "prompt": f"Say nothing with a comma, {i}.",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        }
        for i in range(4)
    ]
    write_lines(folder / "ifeval" / "input_data.jsonl", rows)


def _livebench(folder: Path) -> None:
    def row(name: str, i: int, truth: str | None) -> dict[str, Any]:
        category, task = name.split("/")
        known = {} if truth is None else {"ground_truth": truth}
        return {
            "question_id": f"{category}-{task}-{i}",
            "category": category,
            "task": task,
            "turns": [f"Question {i} of {task}: is {{it}} so?"],
            "livebench_release_date": "2024-06-24" if i else "2025-04-25",
            "livebench_removal_date": "",
            **known,
        }

    live = folder / "livebench"
    write_lines(
        live / "questions" / "reasoning__web_of_lies_v2.jsonl",
        [row("reasoning/web_of_lies_v2", i, "yes, no, yes") for i in range(4)],
    )
    write_lines(live / "prompts_only" / "language__typos.jsonl", [row("language/typos", i, None) for i in range(1, 3)])


# A task of lm-eval's form, with rows of `text` and `right`.
OWN: Mapping[str, Any] = {
    "task": "own",
    "dataset_path": "nowhere/own",
    "output_type": "multiple_choice",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{text}}",
    "doc_to_choice": ["no", "yes"],
    "doc_to_target": "right",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
