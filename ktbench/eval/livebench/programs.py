"""Graders for LiveBench's coding tasks LCB_generation and coding_completion: every test of a question must pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from ktbench.eval.livebench.question import LiveQuestion, ProgramTest
from ktbench.eval.sandbox.running import Limits, call_program, run_program
from ktbench.eval.tasks.harness import Grade

LIMITS = Limits(seconds=6)  # LiveBench's limit, where it is wall-clock time

# Names that solutions may use without importing them. Later ones hide earlier ones: `pow` and `open` are builtins.
_BASICS = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics")
_MODULES = (*_BASICS, "itertools", "functools", "operator", "io", "sys", "json")
_PRELUDE = "\n".join(
    [
        *[f"from {module} import *" for module in (*_MODULES, "builtins", "typing")],
        *[f"import {module}" for module in _MODULES],
        "sys.setrecursionlimit(50_000)",
        "sys.set_int_max_str_digits(50_000)\n",
    ]
)


def grade_program(question: LiveQuestion, answer: str) -> Grade:
    """Whether the program in an answer passes every test of a question that is not `untestable` (pass@1).

    For callers with permission to run generated programs. The expected values never enter the program's process: its
    results and output are compared here. Raises SandboxUnavailable if the sandbox cannot be closed.
    """
    source = _PRELUDE + program_of(answer, question.partial_solution)
    if question.tests[0].functional:
        return _grade_calls(source, question)
    return _grade_outputs(source, question.tests)


def untestable(question: LiveQuestion) -> str:
    """Why no program can be tested; '' if one can."""
    if not question.tests:
        return "no tests"
    functional = [test for test in question.tests if test.functional]
    if functional and not question.func_name:
        return "its tests call a function that is not named"
    texts = (text for test in functional for text in (*test.given.split("\n"), test.wanted))
    if (spoilt := next((text for text in texts if not _is_json(text)), None)) is not None:
        return f"{spoilt[:40]!r} in its tests is no JSON"
    return ""


def program_of(answer: str, partial: str = "") -> str:
    """The code between the last two lines with ```; with one such line at the end the text before it, else the answer.

    `partial` is prepended unless the code begins with it.
    """
    code = _code_of(answer)
    return code if code.startswith(partial) else f"{partial}\n{code}"


def _code_of(answer: str) -> str:
    lines = answer.rstrip().split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    if len(fences) > 1:
        return "\n".join(lines[fences[-2] + 1 : fences[-1]])
    if len(answer) > 1 and answer[0] == answer[-1] == "`":
        return answer[1:-1]
    return "\n".join(lines[:-1] if fences == [len(lines) - 1] else lines)


def same_output(printed: str, wanted: str) -> bool:
    """Whether two outputs have the same lines, ignoring blanks around the whole and around each line.

    A line may also be the same numbers, as exact decimals: `1.0 2` equals `1 2`. A blank line within counts.
    """
    ours, theirs = _lines(printed), _lines(wanted)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(printed: str, wanted: str) -> bool:
    try:
        return printed == wanted or _decimals(printed) == _decimals(wanted)
    except InvalidOperation:
        return False


def _decimals(line: str) -> list[Decimal]:
    """The numbers of a line. Raises InvalidOperation if it contains anything else."""
    return [Decimal(word) for word in line.split()]


def _grade_calls(source: str, question: LiveQuestion) -> Grade:
    tests = question.tests
    arguments = [[json.loads(line) for line in test.given.split("\n")] for test in tests]
    ended = call_program(source, question.func_name, arguments, limits=LIMITS)
    for number, (test, value) in enumerate(zip(tests, ended.values, strict=False), start=1):
        if value != json.loads(test.wanted):
            return _wrong(number, tests)
    if ended.finished and len(ended.values) < len(tests):
        return Grade(0.0, f"returned {len(ended.values)} values in {len(tests)} tests")
    return Grade(1.0) if ended.finished else Grade(0.0, ended.why)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _grade_outputs(source: str, tests: Sequence[ProgramTest]) -> Grade:
    """Each test in a separate process, up to the first that fails."""
    for number, test in enumerate(tests, start=1):
        ended = run_program(source, stdin=test.given, limits=LIMITS)
        if not ended.finished:
            return Grade(0.0, ended.why)
        if not same_output(ended.stdout, test.wanted):
            return _wrong(number, tests)
    return Grade(1.0)


def _wrong(number: int, tests: Sequence[ProgramTest]) -> Grade:
    return Grade(0.0, f"wrong in test {number} of {len(tests)}")
