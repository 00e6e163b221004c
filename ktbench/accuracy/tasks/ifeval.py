"""IFEval: instructions that a program can check; the score is whether an answer follows all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.accuracy.ifeval import judge, prompt_of
from ktbench.accuracy.tasks.harness import build, hub_rows, shipped_config
from ktbench.accuracy.tasks.loaded import BuiltTask
from ktbench.accuracy.tasks.rows import Row, Splits, find_file, json_lines
from ktbench.accuracy.tasks.source import Source
from ktbench.core.scored import SCORE
from ktbench.core.suite import SuiteSpec

_FILES = ("ifeval_input_data.jsonl", "input_data.jsonl")  # as the hub and as its authors name it


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("google/IFEval")
    return {"train": json_lines(find_file(suite.data_dir, "ifeval", _FILES), {}, prompt_of)}


def _grade(row: Row, answers: Sequence[str]) -> dict[str, float]:
    return {SCORE: float(all(judge(prompt_of(row), answers[0]).strict))}


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """The checks are ours: lm-eval's want a download when they are imported."""
    config = shipped_config("ifeval", "ifeval", graded_by=_grade)
    setting = "right where all instructions are followed (strict)"
    return BuiltTask(task=build(config, splits), identity="key", setting=setting)


SOURCES = (Source(prefix="ifeval", read=_read, build=_build, asked="train"),)
