"""A LiveBench question, as its file gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTest:
    """One test of a program: what it is given and what it has to give.

    `functional` tests call a function with one Python literal on each line of `given`; the others write `given` to the
    program's standard input and compare its standard output.
    """

    given: str
    wanted: str
    functional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveQuestion:
    """One question; `turns` holds its one prompt.

    `released` and `removed` are dates as `2024-06-24`; `released` is '' in rows without a date, `removed` in rows that
    are still asked. `ground_truth` is None where the file has none. `instruction_ids` and `instruction_kwargs` belong
    together, one to one. `tests_total` says how many tests the task has. `temperature` is the one that the question
    asks for, None where it asks for none.
    """

    question_id: str
    category: str
    task: str
    turns: tuple[str, ...]
    subtask: str = ""
    system_prompt: str = ""
    ground_truth: str | None = None
    released: str = ""
    removed: str = ""
    temperature: float | None = None
    instruction_ids: tuple[str, ...] = ()
    instruction_kwargs: tuple[Mapping[str, object], ...] = field(default=(), hash=False)
    tests: tuple[ProgramTest, ...] = ()
    tests_total: int = 0
    func_name: str = ""
    partial_solution: str = ""

    @property
    def prompt(self) -> str:
        """What the user says."""
        return self.turns[0]

    @property
    def is_partly_tested(self) -> bool:
        """Only some of its tests are here, so that wrong programs may pass."""
        return 0 < len(self.tests) < self.tests_total

    @property
    def truth(self) -> str:
        """The ground truth. Raises ValueError where the file has none."""
        if self.ground_truth is None:
            raise ValueError(f"{self.category}/{self.task} {self.question_id}: no ground truth")
        return self.ground_truth
