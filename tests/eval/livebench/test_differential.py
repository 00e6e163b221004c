"""Crafted answers to every task are worth what LiveBench's rules say, but for deviations that are on a list."""

from __future__ import annotations

import pytest

from ktbench.eval.livebench.graders import GRADERS
from ktbench.eval.sandbox.running import SandboxUnavailable, sandbox_mechanisms
from tests.drawing import few_of
from tests.eval.livebench.crafted.answers import crafted
from tests.eval.livebench.differential import EXPLAINED, PAGE, PARTS, outcome, parts_of, stored
from tests.eval.livebench.rules.expected import expected

PROGRAMS = ("LCB_generation", "coding_completion")


def needs_sandbox() -> None:
    try:
        sandbox_mechanisms()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("task", few_of(GRADERS, {*GRADERS} - {PROGRAMS[0]}))
def test_every_answer_is_worth_what_the_rules_say(task: str) -> None:
    if task in PROGRAMS:
        needs_sandbox()
    found = outcome(task)
    assert found.unexplained == []
    assert found.explained == EXPLAINED.get(task, {})
    assert len(found.scores) >= 600
    assert {0.0, 1.0} <= set(found.scores)


def test_the_data_are_what_the_rules_derive() -> None:
    """Every answer as it is crafted; the scores of every seventh are derived again."""
    made = [(row, list(answers)) for row, answers in crafted()]
    kept = [(row, pairs) for rows in stored().values() for row, pairs in rows]
    assert [(row, [answer for answer, _ in pairs]) for row, pairs in kept] == made
    drawn = [(row, answer, score) for row, pairs in kept for answer, score in pairs[::7]]
    assert [(answer, expected(row, answer)) for row, answer, _ in drawn] == [
        (answer, score) for _, answer, score in drawn
    ]


@pytest.mark.parametrize("part", few_of(PARTS, {"deviations"}))  # the other one grades all tasks
def test_the_tables_of_the_page_are_up_to_date(part: str) -> None:
    needs_sandbox()
    shown = parts_of(PAGE.read_text(encoding="utf-8"))[part].strip()
    assert shown == PARTS[part](), "run python -m tests.eval.livebench.differential"
