"""Names of files and folders in lm-eval's layout, as `lm_eval --output_path OUT --log_samples` writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ktbench.spec.record import Cell
from ktbench.spec.suite import SuiteSpec

FOLDER = "lm_eval"  # of a run: what lm-eval calls the output path
_PREFIX = "lm_eval/"
_UNSAFE = re.compile(r"[\"<>:/|\\?*\[\]]+")  # lm-eval's own


@dataclass(frozen=True, kw_only=True, slots=True)
class LMEvalNames:
    """Names for the evaluation of a suite: `tasks` by the suite's names, `date` of the run, which all files share."""

    tasks: Mapping[str, str]
    date: str

    @classmethod
    def of(cls, suite: SuiteSpec, created: str) -> LMEvalNames:
        """For a run that was `created` at that time, in ISO 8601.

        A task is called as in lm-eval, by its source; of several with the same source each has its own name behind it.
        """
        sources = {task.name: _in_file(task.source.removeprefix(_PREFIX)) for task in suite.tasks}
        counts = Counter(sources.values())
        names = {
            name: source if counts[source] == 1 else f"{source}_{_in_file(name)}" for name, source in sources.items()
        }
        return cls(tasks=names, date=created[:19].replace(":", "-"))

    def samples(self, task: str) -> str:
        """Name of the file with the samples of a task of the suite."""
        return f"samples_{self.tasks[task]}_{self.date}.jsonl"

    @property
    def results(self) -> str:
        """Name of the file with the results of all tasks."""
        return f"results_{self.date}.json"

    @staticmethod
    def folder(cell: Cell) -> str:
        """The folder of a cell's files below that of the run."""
        return f"{FOLDER}/{sanitised(model_name(cell))}"


def model_name(cell: Cell) -> str:
    """What a cell is called where lm-eval names a model."""
    return f"{cell.spec.model.name}/{cell.label}/{cell.key}".replace(" ", "_")


def sanitised(name: str) -> str:
    """The name of a model as that of a folder."""
    return _UNSAFE.sub("__", name)


def _in_file(name: str) -> str:
    return re.sub(r"\W", "_", name)
