"""The generated tasks: answers held against a second solution, and draws that never change."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.tasks.nano import HELD_OUT, TASKS, NanoTask, Question, grade, questions
from tests.eval.tasks.nano_solvers import SOLVERS

CATEGORIES = ["coding", "data_analysis", "instruction_following", "language", "math", "reasoning"]


def question_with(answer: str) -> Question:
    return Question(category="math", task="addition", prompt="add 2+5: ", answer=answer)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@given(seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_answer_is_what_a_second_solution_finds(task: NanoTask, seed: int) -> None:
    question = task.draw(Random(seed))
    assert (question.category, question.task) == (task.category, task.name)
    assert question.answer == SOLVERS[task.name](question.prompt)


def test_two_tasks_in_each_of_livebench_s_categories() -> None:
    assert sorted(task.category for task in TASKS) == sorted(CATEGORIES * 2)
    assert {task.name for task in TASKS} == set(SOLVERS)


def test_prompts_and_answers_have_the_sizes_promised() -> None:
    for question in questions(100):
        assert 10 <= len(question.prompt) <= 40, question
        assert 3 <= len(question.answer) <= 24, question


def test_questions_are_the_same_everywhere() -> None:
    text = "\n".join(f"{q.category} {q.task} {q.prompt} {q.answer}" for q in questions(HELD_OUT))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "788654d6990ee720a89df4732dd6305378966521d6dcfc5ad5d954f2422ed984"
    )


def test_questions_are_distinct_and_begin_alike_whatever_their_number() -> None:
    few, many = questions(5), questions(30)
    assert len({question.prompt for question in many}) == 30 * len(TASKS)
    assert [q for i, q in enumerate(many) if i % 30 < 5] == list(few)


def test_another_seed_draws_others() -> None:
    assert not {q.prompt for q in questions(20, 1)} & {q.prompt for q in questions(20, 2)}


def test_no_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="per_task=0 must be at least 1"):
        questions(0)


@pytest.mark.parametrize("given_answer", ["640", " 640", "640 \n", "\t640"])
def test_blanks_around_a_right_answer_do_not_matter(given_answer: str) -> None:
    assert grade(question_with("640"), given_answer)


@pytest.mark.parametrize("given_answer", ["", " ", "64", "6400", "6 40", "640.", "0640", "640\n640", "６４０"])
def test_anything_else_is_wrong(given_answer: str) -> None:
    assert not grade(question_with("640"), given_answer)


def test_case_counts() -> None:
    assert not grade(question_with("kT mL"), "KT ML")


@pytest.mark.parametrize(("answer", "why"), [("", "is empty"), (" ", "is empty"), ("6\n4", "line break")])
def test_a_question_that_cannot_be_graded_is_refused(answer: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        question_with(answer)
