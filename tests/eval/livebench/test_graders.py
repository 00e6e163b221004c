"""The table of graders: ideal answers are worth 1, empty ones 0, and what cannot be graded says so."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from ktbench.eval.livebench.graders import ELSEWHERE, GRADERS, Grader, grade_answer, why_ungradable
from ktbench.eval.livebench.loading import read_questions
from ktbench.eval.livebench.question import LiveQuestion, ProgramTest
from ktbench.eval.sandbox.running import SandboxUnavailable
from ktbench.eval.tasks.harness import Grade
from tests.eval.conftest import needs_shared_data
from tests.eval.livebench.questions import LIVEBENCH, live_question

RELEASES = ("2024-07-26", "2024-08-31", "2024-11-25")


def in_bold(question: LiveQuestion) -> str:
    return f"Thus **{question.truth}**"


def of_zebra(question: LiveQuestion) -> str:
    new = question.released >= "2024-11-25"
    return f"<solution>{question.truth}</solution>" if new else f"***{question.truth.removesuffix(' movies')}***"


def is_out_of_reach(question: LiveQuestion) -> bool:
    """LiveBench's rule for older zebra puzzles reads one word, and a few truths are two, as `police-officer`."""
    is_old = question.task == "zebra_puzzle" and question.released < "2024-11-25"
    return is_old and not re.fullmatch(r"\w+", question.truth.removesuffix(" movies"))


IDEAL: Mapping[str, Callable[[LiveQuestion], str]] = {
    "web_of_lies_v2": in_bold,
    "spatial": in_bold,
    "connections": in_bold,
    "zebra_puzzle": of_zebra,
    "math_comp": lambda question: question.truth * 5 if question.truth.isalpha() else f"It is {question.truth}",
    "olympiad": lambda question: f"…\n\nAnswer: {question.truth.replace(',', ', ')}",
    "AMPS_Hard": lambda question: rf"$\boxed{{{question.truth}}}$",
    "cta": lambda question: f" {question.truth}\n",
    "tablejoin": lambda question: f"```python\n{json.loads(question.truth)}\n```",
    "tablereformat": lambda question: question.truth,
}


@cache
def questions(task: str) -> tuple[LiveQuestion, ...]:
    """Those of all releases, each once."""
    found = {q.question_id: q for release in RELEASES for q in read_questions(LIVEBENCH, release, [task])}
    return tuple(found.values())


@needs_shared_data
@pytest.mark.parametrize("task", IDEAL)
def test_the_truth_in_the_requested_form_is_worth_1_and_nothing_0(task: str) -> None:
    for question in questions(task):
        assert why_ungradable(question) == ""
        worth = 0 if is_out_of_reach(question) else 1
        assert grade_answer(question, IDEAL[task](question)).value == worth, question.question_id
        assert grade_answer(question, f"<think>{IDEAL[task](question)}</think>").value == 0, question.question_id
        assert grade_answer(question, "").value == 0, question.question_id
    assert 10 * sum(map(is_out_of_reach, questions(task))) < len(questions(task))


def alike(a: LiveQuestion, b: LiveQuestion) -> bool:
    """Whether both have the same form."""
    return (a.subtask, a.released) == (b.subtask, b.released)


@needs_shared_data
@pytest.mark.parametrize("task", IDEAL)
def test_the_truth_of_another_question_is_worth_less(task: str) -> None:
    for question in questions(task):
        other = next(q for q in questions(task) if alike(q, question) and q.truth.lower() != question.truth.lower())
        answer = IDEAL[task](replace(question, ground_truth=other.truth))
        assert grade_answer(question, answer).value != 1, (question.truth, other.truth)


@needs_shared_data
def test_every_question_that_is_held_can_be_graded_or_has_a_reason() -> None:
    for release in RELEASES:
        for question in read_questions(LIVEBENCH, release):
            assert question.task in GRADERS
            wanted = "no ground truth" if question.task in ("typos", "plot_unscrambling") else ""
            assert why_ungradable(question, confirm_unsafe=True) == wanted


@pytest.mark.parametrize("task", sorted({*GRADERS} - {"LCB_generation", "coding_completion"}))
def test_a_question_that_lacks_what_its_grader_needs_is_not_graded(task: str) -> None:
    graded = grade_answer(live_question(task, None), "yes")
    assert graded.value is None
    assert graded.why in ("no ground truth", "no instructions")


@pytest.mark.parametrize("task", ["LCB_generation", "coding_completion"])
def test_programs_are_run_only_when_that_is_confirmed(task: str) -> None:
    test = ProgramTest(given="1", wanted="1")
    assert why_ungradable(live_question(task, None, tests=(test,))) == "its programs run only with confirm_unsafe=true"
    assert why_ungradable(live_question(task, None, tests=(test,)), confirm_unsafe=True) == ""
    assert why_ungradable(live_question(task, None), confirm_unsafe=True) == "no tests"
    functional = replace(test, functional=True)
    assert "not named" in why_ungradable(live_question(task, None, tests=(functional,)), confirm_unsafe=True)
    assert why_ungradable(live_question(task, None, tests=(functional,), func_name="f"), confirm_unsafe=True) == ""


@pytest.mark.parametrize("task", [*ELSEWHERE, "riddles"])
def test_a_task_without_a_grader_says_why(task: str) -> None:
    graded = grade_answer(live_question(task, "a"), "a", confirm_unsafe=True)
    assert graded.value is None
    assert graded.why == ELSEWHERE.get(task, "no grader of the task riddles")
    in_container = replace(live_question("python", "a"), category="agentic_coding")
    assert why_ungradable(in_container) == ELSEWHERE["agentic_coding"]


def test_instructions_are_counted() -> None:
    instructions = {
        "instruction_ids": ("startend:quotation", "punctuation:no_comma"),
        "instruction_kwargs": ({}, {"relation": None}),
    }
    question = live_question("paraphrase", None, **instructions)
    assert [grade_answer(question, answer).value for answer in ('"a b"', '"a, b"', "a, b", "")] == [1, 0.25, 0, 0]
    assert "no:such" in why_ungradable(
        live_question("paraphrase", None, **instructions | {"instruction_ids": ("no:such", "x")})
    )
    later = live_question("paraphrase", None, **instructions, released="2025-11-25")
    assert grade_answer(later, 'Well, here: <solution>"a b"</solution>').value == 1


def test_a_program_is_run() -> None:
    question = live_question("LCB_generation", None, tests=(ProgramTest(given="2\n", wanted="4\n"),))
    right, wrong = "```python\nprint(2 * int(input()))\n```", "```python\nprint(2)\n```"
    graded = [grade_answer(question, answer, confirm_unsafe=True) for answer in (right, wrong, "")]
    if graded[0].value is None:
        pytest.skip(graded[0].why)
    assert [one.value for one in graded] == [1, 0, 0]
    assert all(one.why for one in graded[1:])


def test_a_program_that_nothing_keeps_in_is_not_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise SandboxUnavailable("nothing keeps it in")

    monkeypatch.setattr("ktbench.eval.livebench.programs.run_program", refuse)
    question = live_question("coding_completion", None, tests=(ProgramTest(given="2\n", wanted="4\n"),))
    assert grade_answer(question, "print(4)", confirm_unsafe=True) == Grade(None, "nothing keeps it in")


def test_a_grader_that_fails_makes_the_answer_0_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(question: LiveQuestion, answer: str) -> float:
        raise RuntimeError("what?")

    monkeypatch.setitem(GRADERS, "sudoku", Grader(grade=fail))
    graded = grade_answer(live_question("sudoku", "1"), "1")
    assert (graded.value, graded.why) == (0, "the grader failed: RuntimeError: what?")


@pytest.mark.parametrize("error", [ImportError("no lxml here"), OSError(errno.ENOMEM, "no memory")])
def test_what_this_machine_lacks_is_no_zero(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(question: LiveQuestion, answer: str) -> float:
        raise error

    monkeypatch.setitem(GRADERS, "sudoku", Grader(grade=fail))
    assert grade_answer(live_question("sudoku", "1"), "1") == Grade(None, f"the grader failed: {error}")


def test_a_truth_that_is_no_table_is_no_zero() -> None:
    assert why_ungradable(live_question("tablereformat", "a,b\n1,2", prompt="to CSV format")) == ""
    assert "requires no format" in why_ungradable(live_question("tablereformat", "a,b\n1,2"))
    assert why_ungradable(live_question("tablereformat", "{", prompt="to JSON format")).startswith(
        "no answer can be compared: "
    )


def test_a_question_that_wants_another_temperature_is_not_graded() -> None:
    assert why_ungradable(live_question("sudoku", "1", temperature=0.7)) == "requires temperature 0.7"
    assert why_ungradable(live_question("sudoku", "1", temperature=0.0)) == ""
