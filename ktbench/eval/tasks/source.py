"""What a family of tasks has to say about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Splits
from ktbench.spec.suite import SuiteSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the questions of some tasks come from, and how they are put and graded.

    A task's source is `prefix`, or `prefix/name` with one of `names` (None: any). `read(name, suite)` gives the rows by
    split, checked: of `suite.data_dir`, else of the hub, or what ships (`ships`). `build(name, rows, suite)` makes
    lm-eval's task of them, which asks the rows of the split `asked`. Answers are run where they are `programs`.
    """

    prefix: str
    read: Callable[[str, SuiteSpec], Splits]
    build: Callable[[str, Splits, SuiteSpec], BuiltTask]
    names: tuple[str, ...] | None = ()
    asked: str = "test"
    decodes: bool = True
    programs: bool = False
    ships: bool = False
