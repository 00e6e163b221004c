"""Graders of LiveBench's coding tasks LCB_generation and coding_completion: every test of a question has to pass."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ktbench.eval.livebench.question import LiveQuestion, ProgramTest
from ktbench.eval.sandbox.running import Limits, call_program, run_program
from ktbench.eval.tasks.harness import Grade

LIMITS = Limits(seconds=6)  # LiveBench's limit, there on the clock

# What solutions may use without importing it. A later name hides an earlier one: `pow` is the builtin, `open` too.
_BASICS = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics")
_MODULES = (*_BASICS, "itertools", "functools", "operator", "io", "sys", "json")
_PRELUDE = "\n".join(
    [
        *[f"from {module} import *" for module in (*_MODULES, "builtins", "typing")],
        *[f"import {module}" for module in _MODULES],
        "sys.setrecursionlimit(600_000)\n",
    ]
)


def grade_program(question: LiveQuestion, answer: str) -> Grade:
    """Whether the program in an answer passes every test of a question that is not `untestable` (pass@1).

    For callers who may run what a model wrote. The expected values never enter the process of the program: what it
    returns or prints is compared here. Raises SandboxUnavailable where the sandbox cannot be closed.
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
    """The code between the last two lines with ```, else the whole answer; after `partial` where it lacks that."""
    lines = answer.split("\n")
    fences = [i for i, line in enumerate(lines) if "```" in line]
    code = "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else answer
    return code if code.startswith(partial) else f"{partial}\n{code}"


def same_output(printed: str, wanted: str) -> bool:
    """Whether two outputs have the same lines, up to blanks around lines and blank lines.

    Lines that are all numbers, and not all integers, are the same where each is near: |a - b| <= 1e-8 + 1e-5 |b|.
    """
    ours, theirs = _stripped(printed), _stripped(wanted)
    return ours == theirs or (len(ours) == len(theirs) and _near(ours, theirs))


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
    """Each test in a process of its own, up to the first that fails."""
    for number, test in enumerate(tests, start=1):
        ended = run_program(source, stdin=test.given, limits=LIMITS)
        if not ended.finished:
            return Grade(0.0, ended.why)
        if not same_output(ended.stdout, test.wanted):
            return _wrong(number, tests)
    return Grade(1.0)


def _wrong(number: int, tests: Sequence[ProgramTest]) -> Grade:
    return Grade(0.0, f"wrong in test {number} of {len(tests)}")


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _near(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    if all(line.lstrip("+-").isdigit() for line in (*ours, *theirs)):
        return False
    try:
        pairs = [(float(a), float(b)) for a, b in zip(ours, theirs, strict=True)]
    except ValueError:
        return False
    return all(abs(a - b) <= 1e-8 + 1e-5 * abs(b) for a, b in pairs)
