"""LiveBench's questions from local files, by release."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ktbench.eval.livebench.question import LiveQuestion, Needed, read_row
from ktbench.eval.tasks.rows import at, numbered_lines
from ktbench.spec.wire import from_plain

RELEASE = "2024-11-25"
_FLAT = ("*__*.jsonl", "*/*__*.jsonl")


class QuestionFile(NamedTuple):
    """A file of questions, and the task in its name."""

    category: str
    task: str
    path: Path


def read_questions(
    folder: Path, release: str = RELEASE, tasks: Collection[str] | None = None
) -> tuple[LiveQuestion, ...]:
    """The questions in `folder` of `release`, by category, task and place in the file.

    Files are `<category>__<task>.jsonl`, in `folder` or one folder below, or `<category>/<task>/question.jsonl` as in
    LiveBench's layout. A release contains questions released by that day and not yet removed; a row without a date is
    in every release. `tasks` are names of tasks (None: all).

    Raises ValueError for a release that is not a date, a folder without questions of the release or of a task, and with
    `file:line: what` for a malformed row.
    """
    release = checked_release(release)
    questions = tuple(question for question in read_every_question(folder, tasks) if is_in_release(question, release))
    if not questions:
        of = f" of {', '.join(tasks)}" if tasks else ""
        raise ValueError(f"{folder}: holds no question of LiveBench release {release}{of}")
    _refuse_twice(folder, questions)
    return questions


def read_every_question(folder: Path, tasks: Collection[str] | None = None) -> Iterator[LiveQuestion]:
    """The questions in `folder` of all releases. Raises ValueError like `read_questions`."""
    files = question_files(folder)
    _refuse_unknown(folder, files, tasks)
    return (question for file in files if tasks is None or file.task in tasks for question in _read_file(file))


def checked_release(release: str) -> str:
    """The release. Raises ValueError if it is not a date."""
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", release):
        raise ValueError(f"release={release}: must be a date as {RELEASE}")
    return release


def is_in_release(question: LiveQuestion, release: str) -> bool:
    """Whether a release contains the question. Dates in this form sort as text."""
    return question.released <= release and (not question.removed or question.removed > release)


def question_files(folder: Path) -> tuple[QuestionFile, ...]:
    """The files of questions in `folder`, by category and task. Raises ValueError without any."""
    places = {path: path.stem.split("__", 1) for name in _FLAT for path in folder.glob(name)}
    places |= {path: list(path.parts[-3:-1]) for path in folder.glob("*/*/question.jsonl")}
    if not places:
        layouts = "<category>__<task>.jsonl (there or one folder below), <category>/<task>/question.jsonl"
        raise ValueError(f"{folder}: holds no LiveBench questions; read are {layouts}")
    return tuple(sorted(QuestionFile(category, task, path) for path, (category, task) in places.items()))


def _refuse_unknown(folder: Path, files: Collection[QuestionFile], tasks: Collection[str] | None) -> None:
    known = {file.task for file in files}
    if unknown := next((task for task in tasks or () if task not in known), None):
        raise ValueError(f"{folder}: holds no questions of the task {unknown}; there are {', '.join(sorted(known))}")


def _refuse_twice(folder: Path, questions: Collection[LiveQuestion]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.question_id in seen:
            raise ValueError(f"{folder}: question {question.question_id} of {question.task} is there twice")
        seen.add(question.question_id)


def _read_file(file: QuestionFile) -> Iterator[LiveQuestion]:
    """The questions of a file. Raises ValueError with `file:line: what`."""
    for number, line in numbered_lines(file.path):
        with at(file.path, number):
            question = read_row(line)
            if (question.category, question.task) != (file.category, file.task):
                place = f"{question.category}/{question.task}"
                raise ValueError(f"is a question of {place}, in a file of {file.category}/{file.task}")
        yield question


def absent(folder: Path, release: str, category: str, task: str) -> str:
    """How many questions of a task have no row in `folder`, in words; '' if none is known to be missing.

    `release_<date>_index.json` in `folder` lists the questions of a release by task; the last one up to `release` is
    used. Rows of any release count. Raises ValueError for a malformed index, and like `read_every_question`.
    """
    indices = {path.name[len("release_") :][:10]: path for path in folder.glob("release_????-??-??_index.json")}
    if not (dated := max((day for day in indices if day <= release), default="")):
        return ""
    listed = _read_index(indices[dated]).get(f"{category}/{task}", frozenset())
    lacking = listed - {question.question_id for question in read_every_question(folder, [task])}
    return f"{len(lacking)} of {len(listed)} questions of release {dated} have no row here" if lacking else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """A task of an index, and the ids of its questions in a release."""

    task: Needed
    question_ids: frozenset[str]


def _read_index(index: Path) -> dict[str, frozenset[str]]:
    """The ids of a release's questions by `category/task`. Raises ValueError."""
    try:
        return {
            listed.task: listed.question_ids for listed in from_plain(json.loads(index.read_bytes()), list[_Listed])
        }
    except ValueError as error:
        raise ValueError(f"{index}: is no list of tasks with their question_ids: {error}") from None
