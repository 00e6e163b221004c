"""The generated tasks: answers held against a second solution, contents kept apart, and draws that never change."""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.nano.data import judged_questions, training_questions
from ktbench.eval.tasks.nano import MOST, SEED, questions
from ktbench.eval.tasks.nano_questions import LEVELS, TASKS, NanoTask, Question, grade
from tests.eval.tasks.nano_solvers import SOLVERS

CATEGORIES = ["coding", "data_analysis", "instruction_following", "language", "math", "reasoning"]


def question_with(answer: str) -> Question:
    return Question(category="math", task="addition", level=1, prompt="add 2+5: ", answer=answer, content="2,5")


def drawn(task: NanoTask, level: int, count: int, seed: object = 0) -> list[Question]:
    return list(islice(task.drawn(Random(f"{seed}"), level), count))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@given(seed=st.integers(0, 2**64), level=st.sampled_from(LEVELS))
@settings(max_examples=60, deadline=None)
def test_answer_is_what_a_second_solution_finds(task: NanoTask, seed: int, level: int) -> None:
    (question,) = drawn(task, level, 1, seed)
    assert (question.category, question.task, question.level) == (task.category, task.name, level)
    assert question.answer == SOLVERS[task.name](question.prompt)


def test_two_tasks_in_each_of_livebench_s_categories() -> None:
    assert sorted(task.category for task in TASKS) == sorted(CATEGORIES * 2)
    assert {task.name for task in TASKS} == set(SOLVERS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_higher_levels_are_longer_or_noisier(task: NanoTask) -> None:
    """Means of prompts and answers together; those of one length differ in what has to be worked out."""
    lengths = [sum(len(q.prompt) + len(q.answer) for q in drawn(task, level, 60)) / 60 for level in LEVELS]
    assert 15 <= lengths[0] < lengths[-1] <= 100
    assert max(len(q.answer) for level in LEVELS for q in drawn(task, level, 60)) <= 80


def test_questions_are_the_same_everywhere() -> None:
    text = "\n".join(f"{q.category} {q.task} {q.level} {q.prompt} {q.answer}" for q in questions(200))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "39a3c9dbcdc3be7bd6b5bae19922ce3ffb3b17296827a190c95f5b4a6e5185a3"


def test_contents_are_distinct_and_begin_alike_whatever_their_number() -> None:
    few, many = questions(5), questions(30)
    assert len({(question.task, question.content) for question in many}) == 30 * len(TASKS)
    assert [q for i, q in enumerate(many) if i % 30 < 5] == list(few)


def test_there_are_as_many_contents_as_may_be_asked_for() -> None:
    assert len({(q.task, q.content) for q in questions(MOST)}) == MOST * len(TASKS)


def in_one_order(question: Question) -> str:
    """The words of prompt and answer sorted, of sums and products the operands: what differs in order is the same."""
    if question.category == "math":
        pairs = re.findall(r"(\d+)[+*](\d+)", question.prompt)
        return f"{question.task} {sorted(sorted(pair) for pair in pairs)}"
    return f"{question.task} {sorted(re.findall(r'[^ ;,:]+', question.prompt + question.answer))}"


@pytest.fixture(scope="module")
def shown() -> list[Question]:
    """As many questions as a training shows."""
    return list(islice(training_questions(0), 48_000))


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    """Those of the published evaluation, those of others, and those that a training judges itself by."""
    return [*questions(MOST), *questions(100, SEED + 1), *judged_questions()]


def test_no_content_is_both_shown_and_asked(shown: list[Question], asked: list[Question]) -> None:
    assert not {(q.task, q.content) for q in shown} & {(q.task, q.content) for q in asked}
    assert all(q.held_out for q in asked)


def test_nothing_asked_is_shown_in_another_order(shown: list[Question], asked: list[Question]) -> None:
    """By the words of the questions themselves, without regard to what they call their content."""
    assert not {in_one_order(q) for q in shown} & {in_one_order(q) for q in asked}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_questions_that_differ_in_order_alone_have_one_content(task: NanoTask) -> None:
    contents: dict[str, set[str]] = {}
    for question in drawn(task, 1, 3000):
        contents.setdefault(in_one_order(question), set()).add(question.content)
    assert all(len(found) == 1 for found in contents.values())


def test_another_seed_draws_others() -> None:
    assert {q.prompt for q in questions(20, 1)} != {q.prompt for q in questions(20, 2)}


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_no_questions_and_too_many_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"per_task={count} must be from 1 to {MOST}"):
        questions(count)


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
