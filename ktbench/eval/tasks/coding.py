"""HumanEval and MBPP: programs, run in a sandbox against the tests of their questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ktbench.eval.grade import Grade
from ktbench.eval.programs import grade_humaneval, grade_mbpp
from ktbench.eval.tasks.harness import build, hub_rows, shipped_config
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Rows, Splits, find_file, json_lines
from ktbench.eval.tasks.source import Source
from ktbench.spec.scored import SCORE
from ktbench.spec.suite import SuiteSpec

_HUMANEVAL_FIELDS = {"task_id": str, "prompt": str, "entry_point": str, "test": str}
_HUMANEVAL_FILES = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
_MBPP_FIELDS = {"task_id": int, "text": str, "code": str, "test_setup_code": str, "test_list": list}
# Austin et al. 2021, arXiv:2108.07732: tasks 1 to 10 are for prompts, 11 to 510 the test.
_MBPP_PROMPT, _MBPP_TEST = range(1, 11), range(11, 511)
_SHOWN = (2, 3, 4)  # what lm-eval shows first
# What the paper's artifact shows (ktransformers-utils/data/mbpp/shots.md of KTransformers' branch sosp25-ae).
_SHOWN_BY_PAPER = (2, 3, 8)
_SETTING = "right where the program passes all tests, in a sandbox"


def _read_humaneval(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("openai/openai_humaneval")
    return {"test": json_lines(find_file(suite.data_dir, "humaneval", _HUMANEVAL_FILES), _HUMANEVAL_FIELDS)}


def _build_humaneval(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = shipped_config("humaneval", "humaneval", graded_by=_grading(grade_humaneval, suite))
    return BuiltTask(task=build(config, splits), identity="task_id", setting=_SETTING)


def _read_mbpp(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("google-research-datasets/mbpp", "full")
    rows = json_lines(find_file(suite.data_dir, "mbpp", ("mbpp.jsonl",)), _MBPP_FIELDS, _has_tests)
    places = {"prompt": _MBPP_PROMPT, "test": _MBPP_TEST}
    return {split: Rows(row for row in rows if row["task_id"] in place) for split, place in places.items()}


def _has_tests(row: Row) -> None:
    if len(row["test_list"]) < 3 or not all(isinstance(test, str) for test in row["test_list"]):
        raise ValueError("test_list: must be a list of 3 texts or more, which the prompt shows")


def _build_mbpp(splits: Splits, suite: SuiteSpec, shown: Sequence[int], **changed: Any) -> BuiltTask:
    """With worked examples of the prompt split, those `shown` first: lm-eval has copies of its three in its code."""
    config = shipped_config("mbpp", "mbpp", graded_by=_grading(grade_mbpp, suite))
    order = [*shown, *(number for number in _MBPP_PROMPT if number not in shown)]
    held = {row["task_id"]: row for row in splits["prompt"]}
    examples = [{**held[number], "is_fewshot": True} for number in order if number in held]
    config |= {"fewshot_config": {"sampler": "first_n", "samples": examples}}
    return BuiltTask(task=build(config | changed, splits), identity="task_id", setting=_SETTING)


def _build_paper_mbpp(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """As the artifact: its three worked examples, indented by four, and up to 1,024 tokens (eval_accuracy.py)."""
    prompt = Rows({**row, "code": _indented(row["code"])} for row in splits["prompt"])
    generation = {"until": ["[DONE]"], "max_gen_toks": 1024, "do_sample": False}
    return _build_mbpp({**splits, "prompt": prompt}, suite, _SHOWN_BY_PAPER, generation_kwargs=generation)


def _indented(code: str) -> str:
    """The code with four blanks for each level."""
    lines = code.splitlines()
    widths = [len(line) - len(line.lstrip()) for line in lines]
    step = min(filter(None, widths), default=1)
    return "\n".join(
        re.sub(r"^\s*", " " * (4 * (width // step)), line) for line, width in zip(lines, widths, strict=True)
    )


def _grading(grade: Callable[..., Grade], suite: SuiteSpec) -> Callable[[Row, Sequence[str]], dict[str, Grade]]:
    def graded(row: Row, answers: Sequence[str]) -> dict[str, Grade]:
        return {SCORE: grade(row, answers[0], confirm_unsafe=suite.confirm_unsafe)}

    return graded


SOURCES = (
    Source(prefix="humaneval", read=_read_humaneval, build=_build_humaneval, programs=True),
    Source(
        prefix="mbpp",
        read=_read_mbpp,
        build=lambda name, splits, suite: _build_mbpp(splits, suite, _SHOWN),
        programs=True,
    ),
    Source(prefix="paper/mbpp", read=_read_mbpp, build=_build_paper_mbpp, programs=True),
)
