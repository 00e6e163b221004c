"""Loads and evaluates one task of a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ktbench.eval.evaluate import GradedAnswer, evaluate_task
from ktbench.eval.tasks.harness import LoadedTask
from ktbench.eval.tasks.sources import load_task
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.eval.tasks.scripted import ScriptedLM


def suite_of(source: str, data: Path | None, *, shots: int = 0, **overrides: Any) -> SuiteSpec:
    task = TaskSpec(name="t", source=source, shots=shots)
    return SuiteSpec(name="s", tasks=(task,), data_dir=None if data is None else str(data), **overrides)


def loaded(source: str, data: Path | None, **overrides: Any) -> LoadedTask:
    suite = suite_of(source, data, **overrides)
    return load_task(suite.tasks[0], suite)


def evaluated(source: str, data: Path | None, lm: ScriptedLM, **overrides: Any) -> list[GradedAnswer]:
    suite = suite_of(source, data, **overrides)
    return list(evaluate_task(load_task(suite.tasks[0], suite), lm, suite))


def values(answers: list[GradedAnswer]) -> list[float | None]:
    return [one.value for one in answers]


def replying(text: str) -> ScriptedLM:
    return ScriptedLM(lambda prompt, generation: text)
