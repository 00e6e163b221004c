"""MMLU: 57 subjects, the likelier of four letters (lm-eval's mmlu)."""

from __future__ import annotations

from pathlib import Path

from ktbench.eval.tasks.harness import build, hub_rows, shipped_config
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Rows, Splits, csv_rows, find_folder
from ktbench.eval.tasks.source import Source
from ktbench.spec.suite import SuiteSpec

_CHOICES = ("choice0", "choice1", "choice2", "choice3")
_LETTERS = "0123"  # what stands in the files for A to D


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("cais/mmlu", name)
    files = {split: f"{split}/{name}_{split}.csv" for split in ("dev", "test")}
    folder = find_folder(suite.data_dir, "mmlu", list(files.values()))
    return {split: _rows(folder / file) for split, file in files.items()}


def _rows(path: Path) -> Rows:
    found = csv_rows(path, ("question", *_CHOICES, "answer"), _is_choice)
    return Rows(
        {"question": row["question"], "choices": [row[name] for name in _CHOICES], "answer": int(row["answer"])}
        for row in found
    )


def _is_choice(row: Row) -> None:
    if row["answer"] not in _LETTERS or not row["answer"]:
        raise ValueError(f"answer={row['answer']}: allowed are {', '.join(_LETTERS)}")


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = shipped_config("mmlu/default", f"mmlu_{name}")
    return BuiltTask(task=build(config, splits), metric="acc", setting="the likeliest of 4 letters")


SOURCES = (Source(prefix="mmlu", names=None, read=_read, build=_build, decodes=False),)
