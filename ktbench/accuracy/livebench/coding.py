"""Grader of LiveBench's coding tasks: the program is run against the tests of its question."""

from __future__ import annotations

from ktbench.accuracy.livebench.programs import grade_program
from ktbench.accuracy.livebench.question import LiveQuestion
from ktbench.accuracy.programs import Graded


def coding(question: LiveQuestion, answer: str) -> Graded:
    """0 or 1: the program passes every test. For callers who may run what a model wrote."""
    return grade_program(question, answer, confirm_unsafe=True)


def untestable(question: LiveQuestion) -> str:
    """Why a program cannot be tested; '' if it can."""
    if not question.tests:
        return "no tests"
    if any(test.functional for test in question.tests) and not question.func_name:
        return "its tests call a function that is not named"
    return ""
