"""A task ready to be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ktbench.spec.scored import SCORE
from ktbench.spec.suite import TaskSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltTask:
    """lm-eval's `task` object, and how its results are read.

    `metric` is what it calls the score, of the answers that `filter` lets through. `identity` is the field that names a
    question; without one it is the row's number. `lacks` says of a row why no answer to it can be graded here ("" where
    it can). `setting` says what is not plain from the task's spec.
    """

    task: Any
    metric: str = SCORE
    filter: str = "none"
    identity: str = ""
    lacks: Callable[[Mapping[str, Any]], str] = lambda row: ""
    setting: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedTask:
    """A task with its questions: `asked` names the question of each row that is asked.

    `decodes` says whether answers are generated; those judged by loglikelihood take a prefill only.
    """

    spec: TaskSpec
    built: BuiltTask
    asked: Mapping[int, str]
    decodes: bool

    @property
    def setting(self) -> str:
        """How questions are put and graded, where that is not plain from the spec."""
        return self.built.setting
