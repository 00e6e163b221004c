"""Every source of questions, the tasks loaded from them, and a check of a suite before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ktbench.eval.livebench import task as livebench_task
from ktbench.eval.livebench.loading import checked_release
from ktbench.eval.sandbox.running import SandboxUnavailable, sandbox_mechanisms
from ktbench.eval.tasks import benchmarks, coding, harness, ifeval, nano
from ktbench.eval.tasks.harness import REGISTERED_PREFIX, BuiltTask, LoadedTask, QuestionSource, registered_decodes
from ktbench.eval.tasks.rows import Splits
from ktbench.eval.texts import draw_sample, drift_texts, wikitext2
from ktbench.resources import install_command
from ktbench.spec.errors import instead
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.suite import MEASURED, SuiteSpec, TaskSpec

_MODULES = (nano, livebench_task, benchmarks, coding, ifeval, harness)
SOURCES: Mapping[str, QuestionSource] = {source.prefix: source for module in _MODULES for source in module.SOURCES}


def load_task(task: TaskSpec, suite: SuiteSpec) -> LoadedTask:
    """A task with the questions that the suite draws from it.

    Raises ValueError for a missing source or data folder, a malformed file (`file:line: what`), a hub that does not
    answer, more few-shot examples than there are, and programs that may not be run.
    """
    source, name = find_source(task)
    splits = read_rows(task, suite)
    with harness.fixed_seeds():
        built = source.build(name, splits, suite)
        _set_shots(task, built)
        rows = built.task.eval_docs
    names = [str(row[built.identity]) if built.identity else str(index) for index, row in enumerate(rows)]
    if len(set(names)) < len(names):
        raise ValueError(f"suite.tasks.{task.name}: two questions have the same {built.identity}")
    questions = {index: names[index] for index in draw_sample(range(len(rows)), suite.limit, suite.seed)}
    return LoadedTask(
        spec=task,
        built=built,
        questions=questions,
        decodes=built.task.OUTPUT_TYPE == "generate_until",
        clusters={question: _cluster(task, rows[index]) for index, question in questions.items()},
    )


def _cluster(task: TaskSpec, row: Mapping[str, Any]) -> str:
    """The cluster of a row's question, empty for a cluster of its own. Raises ValueError for an unknown field."""
    if task.cluster and task.cluster not in row:
        raise ValueError(
            f"suite.tasks.{task.name}.cluster={task.cluster}: no such field; allowed are {', '.join(map(str, row))}"
        )
    return str(row[task.cluster]) if task.cluster else ""


def read_rows(task: TaskSpec, suite: SuiteSpec) -> Splits:
    """The rows of a task's source by split, checked. Raises ValueError."""
    source, name = find_source(task)
    require_permission(task, suite)
    return source.read(name, suite)


def require_permission(task: TaskSpec, suite: SuiteSpec) -> None:
    """Raises ValueError if answers are programs that may not be run, or cannot be run in a sandbox."""
    source, _ = find_source(task)
    if source.programs and not suite.confirm_unsafe:
        raise ValueError(
            f"suite.tasks.{task.name}: answers are programs, run in a sandbox only with confirm_unsafe=true"
        )
    if suite.confirm_unsafe:
        try:
            sandbox_mechanisms()
        except SandboxUnavailable as error:
            raise ValueError(f"confirm_unsafe=true: {error}") from None


def find_source(task: TaskSpec) -> tuple[QuestionSource, str]:
    """The source of a task's questions, and the task's name there. Raises ValueError."""
    where = f"suite.tasks.{task.name}.source={task.source}"
    prefix, _, name = (task.source, "", "") if task.source in SOURCES else task.source.partition("/")
    if (source := SOURCES.get(prefix)) is None:
        allowed = [*map(_source_name, SOURCES.values()), *MEASURED]
        raise ValueError(f"{where}: no such source{instead(task.source, allowed)}")
    if source.names is None and not name:
        raise ValueError(f"{where}: name a task, as {_source_name(source)}")
    if source.names is not None and name not in (source.names or ("",)):
        raise ValueError(f"{where}: no such task{instead(name, source.names or (prefix,))}")
    return source, name


def needs_decode(task: TaskSpec) -> bool:
    """Whether a task needs decode steps, not only prefill passes. Raises ValueError."""
    if task.is_measured:
        return MEASURED[task.source]
    source, name = find_source(task)
    return registered_decodes(name) if source.prefix == REGISTERED_PREFIX else source.decodes


def inactive_feature(spec: RunSpec, task: TaskSpec) -> str:
    """Why a feature of a cell has no effect on a task; empty if all have."""
    engine = spec.engine
    if needs_decode(task):
        return ""
    if engine.cuda_graph:
        return "+c: captures decode steps and chunks of a fixed size, of which this task has none"
    if engine.defer_prefill or not engine.routes:
        return ""
    title = engine.routes[0][0].title.partition(" (")[0]
    return f"{title} acts in decode steps, of which this task has none: engine.defer_prefill=true has it act in prefill"


def _source_name(source: QuestionSource) -> str:
    return source.prefix if source.names == () else f"{source.prefix}/TASK"


def _set_shots(task: TaskSpec, built: BuiltTask) -> None:
    """Puts few-shot examples before each question. Raises ValueError if there are too few."""
    held = _worked_examples(built.task)
    if task.shots > held:
        raise ValueError(f"suite.tasks.{task.name}.shots={task.shots}: there are {held} worked examples")
    built.task.set_config("num_fewshot", task.shots)


def _worked_examples(task: Any) -> int:
    """The number of few-shot examples. Without a split for them lm-eval would show the questions themselves."""
    config, shown = task.config, task.config.fewshot_config
    if not (shown.split or shown.samples or task.has_training_docs() or task.has_validation_docs()):
        return 0
    held = len(task.fewshot_docs())
    scored = config.test_split or config.validation_split
    if shown.samples or (shown.split or config.training_split or config.validation_split) != scored:
        return held
    # lm-eval leaves out the asked question from its examples only if these two names are the same.
    return held - 1 if shown.split == config.test_split else 0


_REQUIRED = ("lm_eval", "datasets")


def describe_suite(suite: SuiteSpec) -> str:
    """A suite in words: its tasks and, if they are on this machine, its questions.

    Raises a one-line ValueError for missing packages, unknown sources or tasks, files that are missing or malformed, a
    release without questions, and programs that may not be run. No hub is contacted.
    """
    if missing := next((name for name in _REQUIRED if find_spec(name) is None), None):
        raise ValueError(f"suite={suite.name}: needs {missing}, which is not installed: {install_command('accuracy')}")
    if suite.release is not None:
        checked_release(suite.release)
    counts = [_questions(task, suite) for task in suite.tasks]
    known = [count for count in counts if count is not None]
    total = f"{sum(known):,} questions" if len(known) == len(counts) else "questions from the hub"
    return f"{len(suite.tasks)} tasks, {total}"


def _questions(task: TaskSpec, suite: SuiteSpec) -> int | None:
    """The number of questions; None where it is unknown before they are loaded."""
    if task.is_measured:
        return _documents(task, suite)
    source, _ = find_source(task)
    require_permission(task, suite)
    if suite.data_dir is None and not source.ships:
        return None
    rows = read_rows(task, suite).get(source.question_split)
    return None if rows is None else min(len(rows), suite.limit or len(rows))


def _documents(task: TaskSpec, suite: SuiteSpec) -> int | None:
    """The number of texts to be measured."""
    if task.source != "wikitext2":
        return len(drift_texts(suite.data_dir).documents)
    return None if suite.data_dir is None else len(wikitext2(suite.data_dir).documents)
