"""How many questions of a release are here, and how many of them can be graded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ktbench.accuracy.livebench import fields
from ktbench.accuracy.livebench.graders import gradable
from ktbench.accuracy.livebench.loading import RELEASE, read_questions


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCount:
    """One task of a release: its questions, those with a row here, those of them that can be graded.

    `published` is None where no index of the release says how many there are. `why` counts, by reason, what cannot be
    graded.
    """

    category: str
    task: str
    published: int | None
    held: int
    gradable: int
    why: Mapping[str, int]


def count_questions(folder: Path, release: str = RELEASE, *, confirm_unsafe: bool = False) -> tuple[TaskCount, ...]:
    """The counts of each task, by category and name. Raises ValueError as `read_questions` does.

    `release_<date>_index.json` in `folder`, if there is one, lists the questions of a release by task.
    """
    published = _published(folder / f"release_{release}_index.json")
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for question in read_questions(folder, release):
        counted = reasons.setdefault((question.category, question.task), Counter())
        counted[gradable(question, confirm_unsafe=confirm_unsafe)] += 1
    return tuple(_count(place, published, reasons.get(place, Counter())) for place in sorted({*published, *reasons}))


def _count(place: tuple[str, str], published: Mapping[tuple[str, str], int], reasons: Counter[str]) -> TaskCount:
    absent = published.get(place, 0) - reasons.total()
    why = {reason: count for reason, count in reasons.items() if reason}
    return TaskCount(
        category=place[0],
        task=place[1],
        published=published.get(place),
        held=reasons.total(),
        gradable=reasons[""],
        why=why | ({"its row is not here": absent} if absent > 0 else {}),
    )


def _published(index: Path) -> dict[tuple[str, str], int]:
    """How many questions the release has, by category and task; empty without an index. Raises ValueError."""
    if not index.is_file():
        return {}
    try:
        rows = json.loads(index.read_bytes())
        return {_place(row): len(fields.listed(row, "question_ids")) for row in rows}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: is no list of tasks with their question_ids: {error}") from None


def _place(row: Mapping[str, object]) -> tuple[str, str]:
    category, _, task = fields.needed(row, "task").partition("/")
    return category, task
