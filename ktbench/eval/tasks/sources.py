"""Every source of questions, and the task that a spec asks of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ktbench.eval.sandbox.limits import Unprotected
from ktbench.eval.sandbox.running import sandbox_powers
from ktbench.eval.tasks import coding, gsm8k, ifeval, live, mmlu, mmlu_pro, nano, registered, strategyqa
from ktbench.eval.tasks.loaded import BuiltTask, LoadedTask
from ktbench.eval.tasks.rows import Splits
from ktbench.eval.tasks.source import Source
from ktbench.eval.texts import drawn
from ktbench.spec.suite import MEASURED, SuiteSpec, TaskSpec

_MODULES = (nano, live, mmlu, mmlu_pro, gsm8k, coding, strategyqa, ifeval, registered)
SOURCES: Mapping[str, Source] = {source.prefix: source for module in _MODULES for source in module.SOURCES}


def load_task(task: TaskSpec, suite: SuiteSpec) -> LoadedTask:
    """A task with the questions that the suite asks of it.

    Raises ValueError for a source or a data folder that is not there, a malformed file (`file:line: what`), a hub that
    does not answer, more worked examples than there are, and programs that may not be run.
    """
    source, name = find_source(task)
    built = source.build(name, read_rows(task, suite), suite)
    _set_shots(task, built)
    rows = built.task.eval_docs
    names = [str(row[built.identity]) if built.identity else str(index) for index, row in enumerate(rows)]
    if len(set(names)) < len(names):
        raise ValueError(f"suite.tasks.{task.name}: two questions have the same {built.identity}")
    asked = {index: names[index] for index in drawn(range(len(rows)), suite.limit, suite.seed)}
    return LoadedTask(spec=task, built=built, asked=asked, decodes=built.task.OUTPUT_TYPE == "generate_until")


def read_rows(task: TaskSpec, suite: SuiteSpec) -> Splits:
    """The rows of a task's source by split, checked. Raises ValueError."""
    source, name = find_source(task)
    require_permission(task, suite)
    return source.read(name, suite)


def require_permission(task: TaskSpec, suite: SuiteSpec) -> None:
    """Raises ValueError where answers are programs that may not be run, or cannot be run in a sandbox."""
    source, _ = find_source(task)
    if source.programs and not suite.confirm_unsafe:
        raise ValueError(
            f"suite.tasks.{task.name}: answers are programs, run in a sandbox only with confirm_unsafe=true"
        )
    if suite.confirm_unsafe:
        _require_sandbox()


def find_source(task: TaskSpec) -> tuple[Source, str]:
    """The source of a task's questions, and the task's name there. Raises ValueError."""
    where = f"suite.tasks.{task.name}.source={task.source}"
    prefix, name = (task.source, "") if task.source in SOURCES else _parted(task.source)
    if (source := SOURCES.get(prefix)) is None:
        allowed = [*map(_written, SOURCES.values()), *MEASURED]
        raise ValueError(f"{where}: no such source; allowed are {', '.join(allowed)}")
    if source.names is None and not name:
        raise ValueError(f"{where}: say which task, as {_written(source)}")
    if source.names is not None and name not in (source.names or ("",)):
        raise ValueError(f"{where}: no such task; allowed are {', '.join(source.names) or prefix}")
    return source, name


def needs_decode(task: TaskSpec) -> bool:
    """Whether a task takes decode steps; else prefill passes do. Raises ValueError."""
    if task.is_measured:
        return MEASURED[task.source]
    source, name = find_source(task)
    return registered.decodes(name) if source.prefix == registered.PREFIX else source.decodes


def _parted(source: str) -> tuple[str, str]:
    prefix, _, name = source.partition("/")
    return prefix, name


def _written(source: Source) -> str:
    return source.prefix if source.names == () else f"{source.prefix}/TASK"


def _require_sandbox() -> None:
    try:
        sandbox_powers()
    except Unprotected as error:
        raise ValueError(f"confirm_unsafe=true: {error}") from None


def _set_shots(task: TaskSpec, built: BuiltTask) -> None:
    """Has worked examples put before each question. Raises ValueError where there are too few."""
    held = _worked_examples(built.task)
    if task.shots > held:
        raise ValueError(f"suite.tasks.{task.name}.shots={task.shots}: there are {held} worked examples")
    built.task.set_config("num_fewshot", task.shots)


def _worked_examples(task: Any) -> int:
    """How many rows there are to show. Without a split of them lm-eval would show the questions that are asked."""
    shown = task.config.fewshot_config
    if not (shown.split or shown.samples or task.has_training_docs() or task.has_validation_docs()):
        return 0
    return len(task.fewshot_docs())
