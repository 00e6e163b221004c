"""MMLU-Pro: 14 subjects, up to ten choices, with chains of thought (lm-eval's mmlu_pro)."""

from __future__ import annotations

from ktbench.eval.tasks.harness import build, hub_rows, shipped_config
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Rows, Splits, find_folder, json_lines
from ktbench.eval.tasks.source import Source
from ktbench.spec.suite import SuiteSpec

_FIELDS = {"question": str, "options": list, "answer": str, "cot_content": str, "category": str}
_LETTERS = "ABCDEFGHIJ"
_SPLITS = ("validation", "test")


def _read(name: str, suite: SuiteSpec) -> Splits:
    category = name.replace("_", " ")
    rows = {split: Rows(row for row in found if row["category"] == category) for split, found in _all(suite).items()}
    if empty := next((split for split in _SPLITS if not rows.get(split)), None):
        raise ValueError(f"mmlu_pro: the {empty} split has no question of the category {category}")
    return rows


def _all(suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("TIGER-Lab/MMLU-Pro")
    folder = find_folder(suite.data_dir, "mmlu_pro", [f"{split}.jsonl" for split in _SPLITS])
    return {split: json_lines(folder / f"{split}.jsonl", _FIELDS, _is_choice) for split in _SPLITS}


def _is_choice(row: Row) -> None:
    allowed = _LETTERS[: len(row["options"])]
    if not all(isinstance(option, str) for option in row["options"]):
        raise ValueError("options: must be a list of texts")
    if len(row["answer"]) != 1 or row["answer"] not in allowed:
        raise ValueError(f"answer={row['answer']}: allowed are {', '.join(allowed)}")


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    from lm_eval.tasks.mmlu_pro import utils

    shots = {
        "sampler": "first_n",
        "split": "validation",
        "doc_to_text": utils.fewshot_to_text,
        "doc_to_target": utils.fewshot_to_target,
    }
    config = shipped_config("mmlu_pro", f"mmlu_pro_{name}")
    del config["process_docs"]  # the rows are those of the subject already
    config |= {"doc_to_text": utils.doc_to_text, "fewshot_config": shots}
    return BuiltTask(
        task=build(config, splits),
        metric="exact_match",
        filter="custom-extract",
        setting="right where `answer is (X)` is",
    )


SOURCES = (Source(prefix="mmlu_pro", names=None, read=_read, build=_build),)
