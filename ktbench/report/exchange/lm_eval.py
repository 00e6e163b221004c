"""Results of an evaluation as `lm_eval --output_path` writes them: a file for each cell, a function of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from ktbench.report.data import json_of
from ktbench.results import Run
from ktbench.results.run import facts_of
from ktbench.spec.engine import EngineSpec
from ktbench.spec.lm_eval import LMEvalNames, model_name, sanitised
from ktbench.spec.record import Cell, TaskResult
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.suite import SuiteSpec
from ktbench.spec.wire import to_plain

# Name of an entry by task in lm-eval's file, and of what the log has for it.
_BY_TASK = {
    "configs": "config",
    "versions": "version",
    "n-shot": "n_shot",
    "higher_is_better": "higher_is_better",
    "n-samples": "n_samples",
    "task_hashes": "task_hash",
}
_SHOTS_SEED = 1234  # of worked examples, lm-eval's own
Found = Mapping[str, TaskResult]


def results_of(run: Run) -> dict[Path, str]:
    """The text of each file of results by its path. Cells for which no task of lm-eval's ended well have none."""
    suite = run.header.suite
    if suite is None:
        return {}
    names, ends = LMEvalNames.of(suite, run.header.created), run.ends()
    found = [
        (cell, {task.name: end for task in suite.tasks if (end := ends.get((cell.key, task.name))) and end.lm_eval})
        for cell in run.header.cells
    ]
    return {
        run.folder / names.folder(cell) / names.results: json_of(_content(run, suite, names, cell, tasks))
        for cell, tasks in found
        if tasks
    }


def _content(run: Run, suite: SuiteSpec, names: LMEvalNames, cell: Cell, tasks: Found) -> dict[str, Any]:
    by_task = {names.tasks[task]: end.lm_eval for task, end in tasks.items()}
    created = datetime.fromisoformat(run.header.created)
    template = next(iter(by_task.values()))["chat_template"]
    return {
        "results": {name: {"name": name, **one["results"]} for name, one in by_task.items()},
        "group_subtasks": {},
        **{entry: {name: one[key] for name, one in by_task.items()} for entry, key in _BY_TASK.items()},
        "config": _config(cell.spec, suite),
        "git_hash": run.header.code_id,
        "date": created.replace(tzinfo=created.tzinfo or UTC).timestamp(),
        **_environment(run, by_task),
        "model_source": "ktbench",
        "model_name": model_name(cell),
        "model_name_sanitized": sanitised(model_name(cell)),
        "system_instruction": None,
        "system_instruction_sha": None,
        "fewshot_as_multiturn": suite.chat,
        "chat_template": template,
        "chat_template_sha": template and sha256(template.encode()).hexdigest(),
        "total_evaluation_time_seconds": str(sum(end.took_s for end in tasks.values())),
    }


def _config(spec: RunSpec, suite: SuiteSpec) -> dict[str, Any]:
    """How the model was opened, in the words of `python -m ktbench.eval.lm.cli run`, and lm-eval's other options."""
    return {
        "model": "ktbench",
        "model_args": dict(_model_args(spec)),
        "batch_size": suite.batch,
        "batch_sizes": [],
        "device": spec.engine.device,
        "use_cache": None,
        "limit": suite.limit,
        "bootstrap_iters": 0,
        "gen_kwargs": None,
        "random_seed": None,
        "numpy_seed": None,
        "torch_seed": None,
        "fewshot_seed": _SHOTS_SEED,
    }


def _model_args(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    yield "path", spec.model.path
    yield "precision", spec.precision
    yield "device_precision", spec.device_precision
    usual = EngineSpec()
    for name in (field.name for field in fields(EngineSpec)):
        if (value := getattr(spec.engine, name)) != getattr(usual, name):
            yield name, to_plain(value)


def _environment(run: Run, by_task: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    facts, last = facts_of(run), [*by_task.values()][-1]
    return {
        "pretty_env_info": "\n".join(f"{name}: {value}" for name, value in facts.items()),
        "transformers_version": facts.get("versions", {}).get("transformers"),
        "lm_eval_version": last["lm_eval_version"],
        "upper_git_hash": None,
        **last["tokenizer"],
    }
