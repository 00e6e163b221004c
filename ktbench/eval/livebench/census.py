"""How many questions of a release have no row here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ktbench.eval.livebench import fields
from ktbench.eval.livebench.loading import read_every_question


def absent(folder: Path, release: str, category: str, task: str) -> str:
    """How many questions of a task have no row in `folder`, in words; '' where none is known to lack.

    `release_<date>_index.json` in `folder` lists the questions of a release by task; the last one up to `release` is
    taken. A row of any release is here. Raises ValueError for a malformed index, and as `read_every_question`.
    """
    indices = {path.name[len("release_") :][:10]: path for path in folder.glob("release_????-??-??_index.json")}
    if not (dated := max((day for day in indices if day <= release), default="")):
        return ""
    listed = _listed(indices[dated]).get(f"{category}/{task}", frozenset())
    lacking = listed - {question.question_id for question in read_every_question(folder, [task])}
    return f"{len(lacking)} of {len(listed)} questions of release {dated} have no row here" if lacking else ""


def _listed(index: Path) -> Mapping[str, frozenset[object]]:
    """The ids of a release's questions by `category/task`. Raises ValueError."""
    try:
        rows = json.loads(index.read_bytes())
        return {fields.needed(row, "task"): frozenset(fields.listed(row, "question_ids")) for row in rows}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: is no list of tasks with their question_ids: {error}") from None
