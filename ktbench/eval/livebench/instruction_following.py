"""Grader of LiveBench's instruction following tasks."""

from __future__ import annotations

from ktbench.eval.livebench.extraction import last_solution
from ktbench.eval.livebench.instructions.following import check_arguments, follow, following_score
from ktbench.eval.livebench.question import LiveQuestion

IN_SOLUTION = "2025-11-25"  # questions released from then on want the text in a solution


def instruction_following(question: LiveQuestion, answer: str) -> float:
    """Partial: halfway between all instructions followed and the fraction that is."""
    said = last_solution(answer) if question.released >= IN_SOLUTION else None
    return following_score(follow(question.instruction_ids, question.instruction_kwargs, said or answer))


def uncheckable(question: LiveQuestion) -> str:
    """Why the instructions of a question cannot be checked; '' if they can."""
    if not question.instruction_ids:
        return "no instructions"
    try:
        check_arguments(question.instruction_ids, question.instruction_kwargs)
    except ValueError as error:
        return str(error)
    return ""
