"""Any task that lm-eval knows, with the data set that it names or with local files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ktbench.eval.tasks.harness import Config, hub_errors, quiet
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Splits, json_lines
from ktbench.eval.tasks.source import Source
from ktbench.spec.suite import SuiteSpec

PREFIX = "lm_eval"
_PREFERRED_METRICS = ("acc", "exact_match")
_PREFERRED_FILTERS = ("flexible-extract",)
_NAMED = re.compile(
    r"""^["']?task["']?:[ \t]*["']?([^\s"'#\[]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)  # groups have lists


def decodes(name: str) -> bool:
    """Whether the task's answers are generated. Raises ValueError for what is no task."""
    return str(_config(name).get("output_type", "generate_until")) == "generate_until"


def _read(name: str, suite: SuiteSpec) -> Splits:
    """Files `<split>.jsonl` with the fields that the task's templates name."""
    if suite.data_dir is None:
        return {}
    paths = [path for folder in (name, ".") for path in sorted((Path(suite.data_dir) / folder).glob("*.jsonl"))]
    if not paths:
        raise ValueError(f"data_dir={suite.data_dir}: no {name} here; wanted are <split>.jsonl, there or in {name}/")
    return {path.stem: json_lines(path, {}) for path in paths if path.parent == paths[0].parent}


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = _config(name)
    if config.get("unsafe_code"):
        raise ValueError(
            f"{PREFIX}/{name}: runs programs without a sandbox; sources humaneval and mbpp run them in one"
        )
    task = _on_files(name, config, splits) if splits else _on_hub(name)
    filters = [one.name for one in task._filters]
    chosen = next((one for one in _PREFERRED_FILTERS if one in filters), filters[0])
    metric = _score_of(name, task)
    return BuiltTask(task=task, metric=metric, filter=chosen, setting=f"the score is {metric} ({chosen})")


def _on_hub(name: str) -> Any:
    with quiet(), hub_errors(f"{PREFIX}/{name}"):
        return _manager(name).load(name)["tasks"][name]


def _on_files(name: str, config: Config, splits: Splits) -> Any:
    """The task with its functions, but another data set: lm-eval takes both of a group's entry."""
    if "class" in config:
        raise ValueError(f"{PREFIX}/{name}: has a data set of its own, leave out data_dir")
    asked = config.get("test_split") or config.get("validation_split")
    shown = config.get("fewshot_split") or config.get("training_split") or config.get("validation_split")
    if missing := next((split for split in (asked, shown) if split and split not in splits), None):
        raise ValueError(f"{PREFIX}/{name}: asks for the split {missing}, but there is no {missing}.jsonl")
    tables = _tables(name, splits)
    entry = {"task": name, "custom_dataset": lambda **_: tables}
    with quiet():
        return _manager(name).load({"group": "local", "task": [entry]})["tasks"][name]


def _tables(name: str, splits: Splits) -> Mapping[str, Any]:
    """As data sets, which functions of a task may filter and map."""
    import datasets

    try:
        return {split: datasets.Dataset.from_list(list(rows)) for split, rows in splits.items()}
    except (ValueError, TypeError) as error:  # of Arrow, which has a type for each column
        raise ValueError(f"{PREFIX}/{name}: the rows differ in form ({str(error).partition(chr(10))[0]})") from None


def _score_of(name: str, task: Any) -> str:
    """The metric that is a mean of values from 0 to 1."""
    from lm_eval.api.metrics import mean

    means, better = task.aggregation(), task.higher_is_better()
    scores = [metric for metric in means if means[metric] is mean and better.get(metric)]
    if not scores:
        raise ValueError(f"{PREFIX}/{name}: none of its metrics is a mean over questions ({', '.join(means)})")
    return next((metric for metric in _PREFERRED_METRICS if metric in scores), scores[0])


def _config(name: str) -> Config:
    config: Config = _manager(name).task_index[name].cfg
    return config


@cache
def _manager(name: str) -> Any:
    """lm-eval's manager of the tasks in one folder. That of all 13,000 would parse for a minute."""
    from lm_eval.tasks import TaskManager

    if name not in (places := _places()):
        near = ", ".join(get_close_matches(name, places, n=3)) or "none"
        raise ValueError(f"{PREFIX}/{name}: lm-eval knows no single task of this name; near are {near}")
    return TaskManager(include_defaults=False, include_path=places[name])


@cache
def _places() -> Mapping[str, Path]:
    """The folder of every task, by its name."""
    from lm_eval import tasks

    found: dict[str, Path] = {}
    for path in sorted(Path(tasks.__file__).parent.rglob("*.yaml")):
        if named := _NAMED.search(path.read_text(encoding="utf-8")):
            found.setdefault(named[1], path.parent)
    return found


SOURCES = (Source(prefix=PREFIX, names=None, read=_read, build=_build),)
