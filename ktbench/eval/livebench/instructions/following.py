"""Which of its instructions an answer follows, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktbench.eval.livebench.instructions.arguments import values
from ktbench.eval.livebench.instructions.table import INSTRUCTIONS


def follow(ids: Sequence[str], kwargs: Sequence[Mapping[str, object]], answer: str) -> tuple[bool, ...]:
    """Whether `answer` follows each instruction, by the strict rules of IFEval. A blank answer follows none.

    `kwargs` are the arguments of each, as IFEval's and LiveBench's rows hold them; arguments that are None count as
    absent. Raises ValueError for an unknown id and for arguments that are missing, malformed or too many.
    """
    given = _given(ids, kwargs)
    if not answer.strip():
        return (False,) * len(ids)
    return tuple(INSTRUCTIONS[name].check(answer, *arguments) for name, arguments in given)


def check_arguments(ids: Sequence[str], kwargs: Sequence[Mapping[str, object]]) -> None:
    """Raises ValueError where `follow` would refuse these instructions."""
    _given(ids, kwargs)


def following_score(followed: Sequence[bool]) -> float:
    """LiveBench's score of one answer, 0 to 1: the mean of the fraction followed and of 1 where all are, else 0."""
    if not followed:
        raise ValueError("no instructions, so no score")
    return (all(followed) + sum(followed) / len(followed)) / 2


def _given(ids: Sequence[str], kwargs: Sequence[Mapping[str, object]]) -> list[tuple[str, tuple[object, ...]]]:
    """Each instruction with its arguments in the order that its check takes them."""
    if unknown := next((name for name in ids if name not in INSTRUCTIONS), None):
        raise ValueError(f"instruction {unknown} is not known; allowed are {', '.join(INSTRUCTIONS)}")
    if len(ids) != len(kwargs):
        raise ValueError(f"{len(ids)} instructions, but arguments for {len(kwargs)}")
    return [(name, values(name, INSTRUCTIONS[name].arguments, given)) for name, given in zip(ids, kwargs, strict=True)]
