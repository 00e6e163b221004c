"""The generated tasks: answers held against a second solution, draws that never change, and what training avoids."""

from __future__ import annotations

import hashlib
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench.eval.nano.drills import CATEGORY as DRILL
from ktbench.eval.nano.drills import recall
from ktbench.eval.nano.question import Question, grade
from ktbench.eval.nano.tasks import HELD_OUT, TASKS, Generator, held_out, questions, training
from tests.eval.nano.solvers import SOLVERS

CATEGORIES = ["coding", "data_analysis", "instruction_following", "language", "math", "reasoning"]


def asked(answer: str) -> Question:
    return Question(category="math", task="addition", prompt="add 2+5: ", answer=answer)


@pytest.mark.parametrize(("task", "generate"), [(task, generate) for _, task, generate in TASKS])
@given(seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_answer_is_what_a_second_solution_finds(task: str, generate: Generator, seed: int) -> None:
    question = generate(Random(seed))
    assert question.task == task
    assert question.answer == SOLVERS[task](question.prompt)


def test_two_tasks_in_each_of_livebench_s_categories() -> None:
    assert sorted(category for category, _, _ in TASKS) == sorted(CATEGORIES * 2)
    assert {task for _, task, _ in TASKS} == set(SOLVERS)
    assert all(question.category == category for category, _, generate in TASKS for question in [generate(Random(1))])


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


def test_another_seed_asks_others() -> None:
    assert not {q.prompt for q in questions(20, 1)} & {q.prompt for q in questions(20, 2)}


def test_no_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="per_task=0 must be at least 1"):
        questions(0)


def test_training_takes_the_tasks_in_turn_and_avoids_the_evaluation() -> None:
    shown = [question for question in islice(training(0), 12_000) if question.category != DRILL]
    assert {q.prompt for q in questions(HELD_OUT)} == held_out()
    assert not {q.prompt for q in shown} & held_out()
    assert {task: sum(q.task == task for q in shown[:6000]) for _, task, _ in TASKS}.keys() == set(SOLVERS)
    assert len(shown) == 9000


def test_training_drops_a_held_out_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.eval.nano.tasks.held_out", frozenset)
    plain = [q for q in islice(training(3), 80) if q.task == "chain"]
    monkeypatch.setattr("ktbench.eval.nano.tasks.held_out", lambda: frozenset({plain[0].prompt}))
    assert [q for q in islice(training(3), 80) if q.task == "chain"][:3] == plain[1:4]


def test_every_fourth_example_is_a_drill_until_there_were_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktbench.eval.nano.tasks.DRILLED", 6)
    drilled = [question.category == DRILL for question in islice(training(0), 20)]
    assert drilled == [False, False, False, True] * 2 + [False] * 12


@given(seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_a_drill_asks_for_its_own_pairs(seed: int) -> None:
    drill = recall(Random(seed))
    pairs = drill.prompt.removeprefix("recall ").removesuffix(": ").split()
    assert sorted(drill.answer.split()) == sorted(pairs)
    assert len({pair[0] for pair in pairs}) == len(pairs)


def test_training_is_repeated_by_its_seed() -> None:
    assert list(islice(training(5), 50)) == list(islice(training(5), 50)) != list(islice(training(6), 50))


@pytest.mark.parametrize("given_answer", ["640", " 640", "640 \n", "\t640"])
def test_blanks_around_a_right_answer_do_not_matter(given_answer: str) -> None:
    assert grade(asked("640"), given_answer)


@pytest.mark.parametrize("given_answer", ["", " ", "64", "6400", "6 40", "640.", "0640", "640\n640", "６４０"])
def test_anything_else_is_wrong(given_answer: str) -> None:
    assert not grade(asked("640"), given_answer)


def test_case_counts() -> None:
    assert not grade(asked("kT mL"), "KT ML")


@pytest.mark.parametrize(("answer", "why"), [("", "is empty"), (" ", "is empty"), ("6\n4", "line break")])
def test_a_question_that_cannot_be_graded_is_refused(answer: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        asked(answer)
