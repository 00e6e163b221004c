"""HumanEval and MBPP: programs, run in a sandbox against the tests of their questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ktbench.eval.sandbox.running import ProgramResult, run_program
from ktbench.eval.tasks.harness import BuiltTask, Grade, QuestionSource, build, hub_rows, shipped_config
from ktbench.eval.tasks.rows import Row, Rows, Splits, find_file, json_lines
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # Chen et al. 2021, section 3.2
MBPP_STOPS = ("[DONE]",)  # ends the few-shot examples of its prompt, Austin et al. 2021
_HUMANEVAL_FIELDS = {"task_id": str, "prompt": str, "entry_point": str, "test": str}
_HUMANEVAL_FILES = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
_MBPP_FIELDS = {"task_id": int, "text": str, "code": str, "test_setup_code": str, "test_list": list}
# Austin et al. 2021, arXiv:2108.07732: tasks 1 to 10 are for prompts, 11 to 510 for testing.
_MBPP_PROMPT, _MBPP_TEST = range(1, 11), range(11, 511)
_SHOTS = (2, 3, 4)  # shown first by lm-eval
# Shown by the paper's artifact (ktransformers-utils/data/mbpp/shots.md of KTransformers' branch sosp25-ae).
_PAPER_SHOTS = (2, 3, 8)
_SETTING = "right where the program passes all tests, in a sandbox"


def grade_humaneval(row: Row, completion: str, *, confirm_unsafe: bool) -> Grade:
    """Whether prompt and completion pass the tests of a row of HumanEval.

    The completion ends before the first of HUMANEVAL_STOPS. Raises ValueError without `confirm_unsafe`,
    SandboxUnavailable if the sandbox cannot be closed.
    """
    _require_confirmation(confirm_unsafe)
    program = row["prompt"] + until(completion, HUMANEVAL_STOPS)
    return _grade_of(run_program(program, tests=f"{row['test']}\ncheck({row['entry_point']})\n"))


def grade_mbpp(row: Row, code: str, *, confirm_unsafe: bool) -> Grade:
    """Whether code passes the tests of a row of MBPP.

    It ends before the first of MBPP_STOPS. `test_setup_code` runs between code and tests, since it calls the code.
    Raises ValueError without `confirm_unsafe`, SandboxUnavailable if the sandbox cannot be closed.
    """
    _require_confirmation(confirm_unsafe)
    return _grade_of(run_program(until(code, MBPP_STOPS), tests="\n".join([row["test_setup_code"], *row["test_list"]])))


def until(text: str, stops: Iterable[str]) -> str:
    """The text before the first of `stops`."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _grade_of(ended: ProgramResult) -> Grade:
    """A program that finished, including its tests, is right."""
    return Grade(1.0 if ended.finished else 0.0, ended.why)


def _require_confirmation(confirm_unsafe: bool) -> None:
    if not confirm_unsafe:
        raise ValueError(
            "confirm_unsafe=false: this task runs programs that a model wrote; allow it: confirm_unsafe=true"
        )


def _read_humaneval(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("openai/openai_humaneval")
    return {"test": json_lines(find_file(suite.data_dir, "humaneval", _HUMANEVAL_FILES), _HUMANEVAL_FIELDS)}


def _build_humaneval(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = shipped_config("humaneval", "humaneval", graded_by=_grader(grade_humaneval, suite))
    return BuiltTask(task=build(config, splits), identity="task_id", setting=_SETTING)


def _read_mbpp(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("google-research-datasets/mbpp", "full")
    rows = json_lines(find_file(suite.data_dir, "mbpp", ("mbpp.jsonl",)), _MBPP_FIELDS, _check_tests)
    places = {"prompt": _MBPP_PROMPT, "test": _MBPP_TEST}
    return {split: Rows(row for row in rows if row["task_id"] in place) for split, place in places.items()}


def _check_tests(row: Row) -> None:
    if len(row["test_list"]) < 3 or not all(isinstance(test, str) for test in row["test_list"]):
        raise ValueError("test_list: must be a list of 3 texts or more, which the prompt shows")


def _build_mbpp(
    name: str, splits: Splits, suite: SuiteSpec, *, shots: Sequence[int] = _SHOTS, **changed: Any
) -> BuiltTask:
    """With few-shot examples from the prompt split, `shots` first: lm-eval has copies of its three in its code."""
    config = shipped_config("mbpp", "mbpp", graded_by=_grader(grade_mbpp, suite))
    order = [*shots, *(number for number in _MBPP_PROMPT if number not in shots)]
    held = {row["task_id"]: row for row in splits["prompt"]}
    examples = [{**held[number], "is_fewshot": True} for number in order if number in held]
    config |= {"fewshot_config": {"sampler": "first_n", "samples": examples}}
    return BuiltTask(task=build(config | changed, splits), identity="task_id", setting=_SETTING)


def _build_paper_mbpp(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """As in the artifact: its three few-shot examples, indented by four, and up to 1,024 tokens (eval_accuracy.py)."""
    prompt = Rows({**row, "code": _indent(row["code"])} for row in splits["prompt"])
    generation = {"until": ["[DONE]"], "max_gen_toks": 1024, "do_sample": False}
    build_mbpp = partial(_build_mbpp, shots=_PAPER_SHOTS, generation_kwargs=generation)
    return build_mbpp(name, {**splits, "prompt": prompt}, suite)


def _indent(code: str) -> str:
    """The code with four spaces per level."""
    lines = code.splitlines()
    widths = [len(line) - len(line.lstrip()) for line in lines]
    step = min(filter(None, widths), default=1)
    return "\n".join(
        re.sub(r"^\s*", " " * (4 * (width // step)), line) for line, width in zip(lines, widths, strict=True)
    )


def _grader(grade: Callable[..., Grade], suite: SuiteSpec) -> Callable[[Row, Sequence[str]], dict[str, Grade]]:
    return lambda row, answers: {SCORE: grade(row, answers[0], confirm_unsafe=suite.confirm_unsafe)}


SOURCES = (
    QuestionSource(prefix="humaneval", read=_read_humaneval, build=_build_humaneval, programs=True),
    QuestionSource(prefix="mbpp", read=_read_mbpp, build=_build_mbpp, programs=True),
    QuestionSource(prefix="paper/mbpp", read=_read_mbpp, build=_build_paper_mbpp, programs=True),
)
