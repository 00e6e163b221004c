"""lm-eval's side of tasks: sources of questions, shipped configurations, data sets, and any task it has registered."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ktbench.eval.tasks.rows import Rows, Splits, json_lines
from ktbench.spec.errors import instead
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec, TaskSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionSource:
    """The source of some tasks' questions, and how they are worded and graded.

    A task's source is `prefix`, or `prefix/name` with one of `names` (None: any). `read(name, suite)` gives the checked
    rows by split: from `suite.data_dir`, else from the hub, or shipped ones (`ships`). `build(name, rows, suite)`
    builds lm-eval's task from them, with the questions of the split `question_split`. Answers that are `programs` are
    run.
    """

    prefix: str
    read: Callable[[str, SuiteSpec], Splits]
    build: Callable[[str, Splits, SuiteSpec], BuiltTask]
    names: tuple[str, ...] | None = ()
    question_split: str = "test"
    decodes: bool = True
    programs: bool = False
    ships: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """The value of an answer, 0 to 1, None if it cannot be graded here; `why` is the reason it is not 1."""

    value: float | None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDocument:
    """One text, and its continuation if only that is to be predicted.

    `name` does not depend on where the text was read.
    """

    name: str
    text: str
    continuation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltTask:
    """lm-eval's `task` object, and how its results are read.

    `metric` is its name of the score, for answers after `filter`. `identity` is the field that names a question;
    without one it is the row's number. `lacks(row)` is why no answer to it can be graded here ("" if it can).
    `right(row)` is the prompt and its single right answer, whose predictions can be compared; None if there are
    several. `setting` describes what the task's spec leaves open.
    """

    task: Any
    metric: str = SCORE
    filter: str = "none"
    identity: str = ""
    lacks: Callable[[Mapping[str, Any]], str] = lambda row: ""
    right: Callable[[Mapping[str, Any]], tuple[str, str]] | None = None
    setting: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTask:
    """A task with its questions: `questions` names the question of each row in use, `clusters` the cluster of each.

    `decodes`: whether answers are generated; those scored by loglikelihood need only a prefill.
    """

    spec: TaskSpec
    built: BuiltTask
    questions: Mapping[int, str]
    decodes: bool
    clusters: Mapping[str, str] = field(default_factory=dict)

    def right_answers(self) -> tuple[TextDocument, ...]:
        """The questions, to be continued with their right answers. Raises ValueError if they have several."""
        if (right := self.built.right) is None:
            raise ValueError(f"suite.tasks.{self.spec.name}: its questions have no single right answer to predict")
        rows = self.built.task.eval_docs
        pairs = {name: right(rows[index]) for index, name in self.questions.items()}
        return tuple(TextDocument(name=name, text=text, continuation=more) for name, (text, more) in pairs.items())


Config = dict[str, Any]

# The configuration of a task with our own grading function, which returns {SCORE: value or Grade}.
GRADED: Mapping[str, Any] = {"metric_list": [{"metric": SCORE, "aggregation": "mean", "higher_is_better": True}]}
# Keys read only by lm-eval's list of tasks, and keys read only by its own grader.
_LISTING = ("tag", "task_alias", "group", "task_list", "unsafe_code")
_GRADING = ("metric_list", "filter_list", "process_results")


def shipped_config(folder: str, name: str, *, graded_by: Any = None) -> Config:
    """The configuration of the task `name` in lm-eval's `folder`; functions that it names stay text.

    With `graded_by`, its prompts and stop strings are kept, and that function grades: (row, answers) → {"score": ...}.
    """
    if name not in (configs := _configs(folder)):
        raise ValueError(f"{name}: lm-eval has no such task{instead(name, sorted(configs))}")
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
    """A data set from the hub by splits. Raises ValueError if it cannot be loaded, for example without a network."""
    import datasets

    with hub_errors(path):
        return {split: Rows(map(dict, rows)) for split, rows in datasets.load_dataset(path, name).items()}


@contextmanager
def hub_errors(path: str) -> Iterator[None]:
    """Turns errors of the hub's clients into a one-line ValueError."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{path}: needs {error.name}, which is not installed") from None
    except Exception as error:  # the hub's clients raise many kinds of errors
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: cannot be loaded from the hub ({reason}); give data_dir=FOLDER of local files"
        ) from None


def build(config: Mapping[str, Any], splits: Splits) -> Any:
    """lm-eval's task of this configuration, with our rows as its data set."""
    from lm_eval.api.task import ConfigurableTask

    with quiet():
        return ConfigurableTask(config={**config, "custom_dataset": lambda **_: splits})


@contextmanager
def templates_compiled_once() -> Iterator[None]:
    """Caches compiled templates: lm-eval compiles them for every row and few-shot example, which takes most of the
    time."""
    from lm_eval.utils import env

    before = env.from_string
    env.from_string = cache(before)
    try:
        yield
    finally:
        env.from_string = before


_SEED, _NUMPY_SEED = 0, 1234  # those of lm-eval's evaluator


@contextmanager
def fixed_seeds() -> Iterator[None]:
    """Seeds the global generators used by lm-eval's tasks, so that every cell and process draws the same."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(_SEED)
    np.random.seed(_NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses lm-eval's advice to authors of configurations."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


REGISTERED_PREFIX = "lm_eval"
_PREFERRED_METRICS = ("acc", "exact_match")
_PREFERRED_FILTERS = ("flexible-extract",)
_NAMED = re.compile(
    r"""^["']?task["']?:[ \t]*["']?([^\s"'#\[]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)  # groups have lists


def registered_decodes(name: str) -> bool:
    """Whether the task's answers are generated. Raises ValueError for an unknown task."""
    return str(_config(name).get("output_type", "generate_until")) == "generate_until"


def _read_registered(name: str, suite: SuiteSpec) -> Splits:
    """Files `<split>.jsonl` with the fields used by the task's templates."""
    if suite.data_dir is None:
        return {}
    paths = [path for folder in (name, ".") for path in sorted((Path(suite.data_dir) / folder).glob("*.jsonl"))]
    if not paths:
        raise ValueError(f"data_dir={suite.data_dir}: no {name} here; wanted are <split>.jsonl, there or in {name}/")
    return {path.stem: json_lines(path, {}) for path in paths if path.parent == paths[0].parent}


def _build_registered(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = _config(name)
    if config.get("unsafe_code"):
        raise ValueError(
            f"{REGISTERED_PREFIX}/{name}: runs programs without a sandbox; sources humaneval and mbpp run them in one"
        )
    task = _on_files(name, config, splits) if splits else _on_hub(name)
    filters = [ensemble.name for ensemble in task._filters]
    chosen = next((wanted for wanted in _PREFERRED_FILTERS if wanted in filters), filters[0])
    metric = _score_of(name, task)
    return BuiltTask(task=task, metric=metric, filter=chosen, setting=f"the score is {metric} ({chosen})")


def _on_hub(name: str) -> Any:
    with quiet(), hub_errors(f"{REGISTERED_PREFIX}/{name}"):
        return _manager(name).load(name)["tasks"][name]


def _on_files(name: str, config: Config, splits: Splits) -> Any:
    """The task with its functions but another data set: lm-eval takes both from a group's entry."""
    if "class" in config:
        raise ValueError(f"{REGISTERED_PREFIX}/{name}: has a data set of its own, leave out data_dir")
    scored = config.get("test_split") or config.get("validation_split")
    shown = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
    if missing := next((split for split in (scored, shown) if split and split not in splits), None):
        raise ValueError(f"{REGISTERED_PREFIX}/{name}: needs the split {missing}, but there is no {missing}.jsonl")
    tables = _tables(name, splits)
    entry = {"task": name, "custom_dataset": lambda **_: tables}
    with quiet():
        return _manager(name).load({"group": "local", "task": [entry]})["tasks"][name]


def _tables(name: str, splits: Splits) -> Mapping[str, Any]:
    """The rows as data sets, which a task's functions may filter and map."""
    import datasets

    try:
        return {split: datasets.Dataset.from_list(list(rows)) for split, rows in splits.items()}
    except (ValueError, TypeError) as error:  # from Arrow, which has a type for each column
        raise ValueError(
            f"{REGISTERED_PREFIX}/{name}: the rows differ in form ({str(error).partition(chr(10))[0]})"
        ) from None


def _score_of(name: str, task: Any) -> str:
    """The metric that is a mean of values from 0 to 1."""
    from lm_eval.api.metrics import mean

    means, better = task.aggregation(), task.higher_is_better()
    scores = [metric for metric in means if means[metric] is mean and better.get(metric)]
    if not scores:
        raise ValueError(
            f"{REGISTERED_PREFIX}/{name}: none of its metrics is a mean over questions ({', '.join(means)})"
        )
    return next((metric for metric in _PREFERRED_METRICS if metric in scores), scores[0])


def _config(name: str) -> Config:
    config: Config = _manager(name).task_index[name].cfg
    return config


@cache
def _manager(name: str) -> Any:
    """lm-eval's manager of the tasks in one folder; for all 13,000 it would parse for a minute."""
    from lm_eval.tasks import TaskManager

    if name not in (places := _places()):
        near = ", ".join(get_close_matches(name, places, n=3)) or "none"
        raise ValueError(f"{REGISTERED_PREFIX}/{name}: lm-eval has no single task of this name; similar are {near}")
    return TaskManager(include_defaults=False, include_path=places[name])


@cache
def _places() -> Mapping[str, Path]:
    """The folder of every task, by its name."""
    from lm_eval import tasks

    folders: dict[str, Path] = {}
    for path in sorted(Path(tasks.__file__).parent.rglob("*.yaml")):
        if named := _NAMED.search(path.read_text(encoding="utf-8")):
            folders.setdefault(named[1], path.parent)
    return folders


SOURCES = (QuestionSource(prefix=REGISTERED_PREFIX, names=None, read=_read_registered, build=_build_registered),)
