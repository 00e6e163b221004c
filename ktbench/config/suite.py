"""The suite of a request: what a file of `evals` says, and what the command line has to say about it."""

from __future__ import annotations

from typing import Any

from ktbench.config.parts import Composed
from ktbench.spec.suite import SuiteSpec, only
from ktbench.spec.wire import from_plain

# Keys of a command line by which a suite is fitted to what is at hand.
KEYS = ("data_dir", "limit", "confirm_unsafe")


def suite_of(composed: Composed) -> SuiteSpec | None:
    """What is asked of the cells; None where nothing is.

    Raises ValueError for a value that a suite refuses, for a task that it has not, for a part that asks questions, and
    for keys of suites where there is none.
    """
    asking = [name for name, content in composed.parts.items() if name and content["suite"] is not None]
    if asking:
        raise ValueError(f"sweep.parts: {asking[0]} asks questions, run it by itself")
    given = {key: value for key in KEYS if (value := composed.run[key]) is not None and value is not False}
    names, content = composed.run["tasks"], composed.run["suite"]
    if content is None:
        if unused := next(iter([*given, *(["tasks"] if names is not None else [])]), None):
            raise ValueError(f"{unused}: is for a suite, name one with +suite=NAME")
        return None
    suite = from_plain(content | given, SuiteSpec)
    return suite if names is None else _narrowed(content | given, suite, names)


def _narrowed(content: dict[str, Any], suite: SuiteSpec, names: Any) -> SuiteSpec:
    chosen = [str(name) for name in (names if isinstance(names, list) else [names])]
    tasks = only(suite.tasks, chosen)
    kept = [one for one in content["tasks"] if one["name"] in {task.name for task in tasks}]
    return from_plain(content | {"tasks": kept}, SuiteSpec)
