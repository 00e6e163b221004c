"""IFEval: instructions that a program can check; the score is whether an answer follows all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ktbench.eval.livebench.instructions.following import check_arguments, follow
from ktbench.eval.livebench.instructions.language import detector
from ktbench.eval.tasks.harness import build, hub_rows, shipped_config
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Splits, find_file, json_lines
from ktbench.eval.tasks.source import Source
from ktbench.spec.scored import SCORE
from ktbench.spec.suite import SuiteSpec

_FILES = ("ifeval_input_data.jsonl", "input_data.jsonl")  # as the hub and as its authors name it
_FIELDS = {"prompt": str, "instruction_id_list": list, "kwargs": list}


def _read(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("google/IFEval")
    return {"train": json_lines(find_file(suite.data_dir, "ifeval", _FILES), _FIELDS, _check)}


def _check(row: Row) -> None:
    """Raises ValueError that says which field of a row is wrong."""
    if not isinstance(key := row.get("key"), int | str) or isinstance(key, bool):
        raise ValueError(f"key={key!r}: must be a number or text")
    if not row["prompt"].strip():
        raise ValueError("prompt: must be text that is not blank")
    for field, kind, items in (("instruction_id_list", str, "texts"), ("kwargs", dict, "objects")):
        if not row[field] or not all(isinstance(item, kind) for item in row[field]):
            raise ValueError(f"{field}: must be a list of {items} that is not empty")
    check_arguments(row["instruction_id_list"], row["kwargs"])


def _grade(row: Row, answers: Sequence[str]) -> dict[str, float]:
    return {SCORE: float(all(follow(row["instruction_id_list"], row["kwargs"], answers[0])))}


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """The checks are ours: lm-eval's want a download when they are imported."""
    config = shipped_config("ifeval", "ifeval", graded_by=_grade)
    setting = f"right where all instructions are followed (strict), languages told by {detector()}"
    return BuiltTask(task=build(config, splits), identity="key", setting=setting)


SOURCES = (Source(prefix="ifeval", read=_read, build=_build, asked="train"),)
