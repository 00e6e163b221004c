"""Graders of HumanEval and MBPP. Programs run in the sandbox, and only where that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ktbench.eval.grade import Grade
from ktbench.eval.sandbox.limits import Ended
from ktbench.eval.sandbox.running import run_program

HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # Chen et al. 2021, section 3.2
MBPP_STOPS = ("[DONE]",)  # what ends the worked examples of its prompt, Austin et al. 2021

Row = Mapping[str, object]


def grade_humaneval(row: Row, completion: str, *, confirm_unsafe: bool) -> Grade:
    """Whether prompt and completion pass the tests of a row of HumanEval.

    The completion ends before the first of HUMANEVAL_STOPS. Raises ValueError without `confirm_unsafe` or for a row
    that lacks a field, Unprotected where the sandbox cannot be closed.
    """
    _demand_confirmation(confirm_unsafe)
    prompt, test, function = (_text(row, name) for name in ("prompt", "test", "entry_point"))
    program = prompt + until(completion, HUMANEVAL_STOPS)
    return of_ended(run_program(program, tests=f"{test}\ncheck({function})\n"))


def grade_mbpp(row: Row, code: str, *, confirm_unsafe: bool) -> Grade:
    """Whether code passes the tests of a row of MBPP.

    It ends before the first of MBPP_STOPS. `test_setup_code` runs between code and tests, as it calls the code. Raises
    ValueError without `confirm_unsafe` or for a row that lacks a field, Unprotected where the sandbox cannot be closed.
    """
    _demand_confirmation(confirm_unsafe)
    tests = row.get("test_list")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError("test_list: must be a list of texts")
    return of_ended(run_program(until(code, MBPP_STOPS), tests="\n".join([_setup(row), *tests])))


def _demand_confirmation(confirm_unsafe: bool) -> None:
    """Raises ValueError where running generated programs was not asked for."""
    if not confirm_unsafe:
        raise ValueError(
            "confirm_unsafe=false: this task runs programs that a model wrote; allow it: confirm_unsafe=true"
        )


def until(text: str, stops: Iterable[str]) -> str:
    """The text before the first of `stops`."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def of_ended(ended: Ended) -> Grade:
    """A program that came to its end, its tests included, is right."""
    return Grade(1.0 if ended.finished else 0.0, ended.why)


def _text(row: Row, name: str) -> str:
    if not isinstance(value := row.get(name), str):
        raise ValueError(f"{name}: must be a text")
    return value


def _setup(row: Row) -> str:
    return _text(row, "test_setup_code") if row.get("test_setup_code") is not None else ""
