"""The questions for a model, frozen: a suite of tasks, and how their questions are put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from ktbench.spec.errors import at_least, check_ranges, instead, repeated

# How the score of a suite is made of its tasks'. `categories`: questions → task → category → average, each the plain
# mean of the ones below it (LiveBench). `tasks`: the mean over tasks. `questions`: the mean over all questions (MMLU).
Average = Literal["categories", "tasks", "questions"]

# Sources whose texts are not asked but measured, and whether that takes decode steps.
MEASURED: Mapping[str, bool] = {"wikitext2": False, "drift/decode": True, "drift/prefill": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """One task of a suite and how its questions are put.

    `source` says where its questions and its grader come from (`ktbench.eval.tasks`): `nano/addition`,
    `livebench/math/olympiad`, `mmlu/anatomy`, `gsm8k`, `lm_eval/arc_easy`. `shots` worked examples come before each
    question. `samples` answers are drawn for each at `temperature`; at temperature 0 decoding is greedy and one is
    enough. None leaves the length of an answer to the task. `cluster` is the field of a question's row that names what
    it has in common with others (a passage, say): questions with the same value are not taken as independent.
    """

    name: str
    source: str
    category: str = ""
    shots: int = 0
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int | None = None
    cluster: str = ""

    def __post_init__(self) -> None:
        where = f"suite.tasks.{self.name}"
        at_least(f"{where}.shots", self.shots, 0)
        at_least(f"{where}.samples", self.samples, 1)
        at_least(f"{where}.max_new_tokens", self.max_new_tokens, 1)
        if self.temperature < 0:
            raise ValueError(f"{where}.temperature={self.temperature}: must be 0 or above")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"{where}.top_p={self.top_p}: allowed are values above 0 up to 1")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"{where}.samples={self.samples}: greedy answers are all alike, set a temperature")

    @property
    def is_measured(self) -> bool:
        """Whether its texts are measured (loss, divergence); else its questions are asked and answers graded."""
        return self.source in MEASURED

    @property
    def is_drift(self) -> bool:
        """Whether predictions are held against those of the baseline."""
        return self.source.startswith("drift/")

    @property
    def is_compared(self) -> bool:
        """Whether predictions of given tokens are held against those of the baseline, beside scores or without."""
        return self.is_drift or self.source.startswith("nano/")


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteSpec:
    """Tasks that are run and reported together.

    `limit` questions are asked of each task, chosen with `seed` (None: all). `data_dir` is the folder of local files
    (None: from the hub, or what ships). `release` picks the questions of a dated benchmark. `chat` puts questions into
    the tokenizer's chat template. `batch` sequences go through the model together. Answers that are programs are run
    only with `confirm_unsafe`.
    """

    name: Annotated[str, Meta(description="how the suite is called")]
    title: Annotated[str, Meta(description="what tables call it")] = ""
    tasks: Annotated[tuple[TaskSpec, ...], Meta(description="its tasks")]
    average: Annotated[Average, Meta(description="what the average weighs equally")] = "categories"
    data_dir: Annotated[str | None, Meta(description="local files; null: from the hub")] = None
    release: Annotated[str | None, Meta(description="date of a benchmark's questions")] = None
    limit: Annotated[int | None, Meta(description="questions of each task; null: all")] = None
    chat: Annotated[bool, Meta(description="use the tokenizer's chat template")] = False
    batch: Annotated[int, Meta(ge=1, description="sequences at once")] = 32
    seed: Annotated[int, Meta(description="of the choice of questions")] = 0
    confirm_unsafe: Annotated[bool, Meta(description="run programs that a model wrote, sandboxed")] = False

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"suite={self.name}: has no tasks")
        if twice := repeated([task.name for task in self.tasks]):
            raise ValueError(f"suite={self.name}: two tasks are called {twice}")
        check_ranges(self, "suite")
        at_least("limit", self.limit, 1)

    def task(self, name: str) -> TaskSpec:
        """The task of that name. Raises KeyError."""
        return {task.name: task for task in self.tasks}[name]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order of their first tasks."""
        return tuple(dict.fromkeys(task.category for task in self.tasks))


def only(suite_tasks: Sequence[TaskSpec], names: Sequence[str]) -> tuple[TaskSpec, ...]:
    """The tasks of these names or categories, in the suite's order. Raises ValueError for a name that is neither."""
    known = {name for task in suite_tasks for name in (task.name, task.category)}
    if unknown := next((name for name in names if name not in known), None):
        raise ValueError(f"tasks={unknown}: no such task or category{instead(unknown, sorted(known - {''}))}")
    return tuple(task for task in suite_tasks if task.name in names or task.category in names)
