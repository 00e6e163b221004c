"""A look at what a suite asks for, before anything heavy is loaded."""

from __future__ import annotations

from importlib.util import find_spec

from ktbench.eval.livebench.loading import checked_release
from ktbench.eval.tasks.sources import find_source, read_rows, require_permission
from ktbench.eval.texts import drift_texts, wikitext2
from ktbench.spec.suite import SuiteSpec, TaskSpec

_NEEDED = ("lm_eval", "datasets")


def inspect(suite: SuiteSpec) -> str:
    """What a suite will ask, in words: tasks and, where they are on this machine, questions.

    Raises ValueError, one line, for what is not installed, a source or a task that there is not, files that are missing
    or malformed, a release without questions, and programs that may not be run. Asks no hub.
    """
    if missing := next((name for name in _NEEDED if find_spec(name) is None), None):
        raise ValueError(
            f'suite={suite.name}: needs {missing}, which is not installed: pip install "ktbench[accuracy]"'
        )
    if suite.release is not None:
        checked_release(suite.release)
    counts = [_questions(task, suite) for task in suite.tasks]
    known = [count for count in counts if count is not None]
    asked = f"{sum(known):,} questions" if len(known) == len(counts) else "questions from the hub"
    return f"{len(suite.tasks)} tasks, {asked}"


def _questions(task: TaskSpec, suite: SuiteSpec) -> int | None:
    """How many questions are asked; None where that is not known before they are loaded."""
    if task.is_measured:
        return _documents(task, suite)
    source, _ = find_source(task)
    require_permission(task, suite)
    if suite.data_dir is None and not source.ships:
        return None
    rows = read_rows(task, suite).get(source.asked)
    return None if rows is None else min(len(rows), suite.limit or len(rows))


def _documents(task: TaskSpec, suite: SuiteSpec) -> int | None:
    """How many texts there are to be measured."""
    if task.source != "wikitext2":
        return len(drift_texts(suite.data_dir).documents)
    return None if suite.data_dir is None else len(wikitext2(suite.data_dir).documents)
