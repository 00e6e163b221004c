"""lm-eval's side of a task: configurations that it ships, its data sets, and a task built of both."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from ktbench.eval.tasks.rows import Rows, Splits
from ktbench.spec.scored import SCORE

Config = dict[str, Any]

# Of a task that a function of ours grades: it gives {SCORE: value or Grade}.
GRADED: Mapping[str, Any] = {"metric_list": [{"metric": SCORE, "aggregation": "mean", "higher_is_better": True}]}
# What only lm-eval's list of tasks reads, and what only its own grader does.
_LISTING = ("tag", "task_alias", "group", "task_list", "unsafe_code")
_GRADING = ("metric_list", "filter_list", "process_results")


def shipped_config(folder: str, name: str, *, graded_by: Any = None) -> Config:
    """The configuration of the task `name` in lm-eval's `folder`; functions that it names are left as text.

    With `graded_by` its prompts and stop strings stay, and that function grades: (row, answers) → {"score": ...}.
    """
    if name not in (configs := _configs(folder)):
        raise ValueError(f"{name}: lm-eval knows no such task; allowed are {', '.join(sorted(configs))}")
    kept = deepcopy(configs[name])
    left = _LISTING if graded_by is None else (*_LISTING, *_GRADING)
    config = {key: value for key, value in kept.items() if key not in left}
    return config if graded_by is None else {**config, **GRADED, "process_results": graded_by}


@cache
def _configs(folder: str) -> Mapping[str, Config]:
    from lm_eval import tasks

    # The manager of all tasks would read 14,000 files.
    manager = tasks.TaskManager(include_defaults=False, include_path=Path(tasks.__file__).parent / folder)
    return {name: entry.cfg for name, entry in manager.task_index.items() if entry.cfg is not None}


@cache
def hub_rows(path: str, name: str | None = None) -> Splits:
    """A data set of the hub by splits. Raises ValueError where it cannot be had, such as without a network."""
    import datasets

    with hub_errors(path):
        return {split: Rows(map(dict, rows)) for split, rows in datasets.load_dataset(path, name).items()}


@contextmanager
def hub_errors(path: str) -> Iterator[None]:
    """Says in one line that a data set cannot be had."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{path}: needs {error.name}, which is not installed") from None
    except Exception as error:  # the hub's clients raise errors of many families
        said = str(error).partition("\n")[0]
        raise ValueError(f"{path}: cannot be had from the hub ({said}); give data_dir=FOLDER of local files") from None


def build(config: Mapping[str, Any], splits: Splits) -> Any:
    """lm-eval's task of this configuration, with rows of ours for a data set."""
    from lm_eval.api.task import ConfigurableTask

    with quiet():
        return ConfigurableTask(config={**config, "custom_dataset": lambda **_: splits})


@contextmanager
def templates_compiled_once() -> Iterator[None]:
    """lm-eval compiles its templates anew for every row and every worked example, which would take most of the time."""
    from lm_eval.utils import env

    before = env.from_string
    env.from_string = cache(before)
    try:
        yield
    finally:
        env.from_string = before


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps from the terminal what lm-eval advises those who write configurations."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
