"""The content of lm-eval's own files about a task: a line per question and filter, and the facts about its scores."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import version
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ktbench.eval.tasks.harness import Grade, LoadedTask
from ktbench.files import whole_file
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# The results of a question by filter, from the task's grader.
Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedQuestion:
    """A question by its row number in the split, and the arguments of its requests as they were answered.

    Fields only for our own graders, such as the tests of a program, are not logged.
    """

    index: int
    row: Mapping[str, Any]
    asked: Sequence[tuple[Any, ...]]

    def line(self, task: Any, instances: Sequence[Instance], name: str) -> dict[str, Any]:
        """lm-eval's log line for its answer under the filter `name`, without metrics."""
        from lm_eval.utils import hash_string, sanitize_list

        target = str(task.doc_to_target(self.row))
        doc = {key: value for key, value in self.row.items() if not is_dataclass(value)}
        return {
            "doc_id": self.index,
            "doc": doc,
            "target": target,
            "arguments": dict(_number_keys("gen_args", [dict(_number_keys("arg", words)) for words in self.asked])),
            "resps": sanitize_list([instance.resps for instance in instances]),
            "filtered_resps": sanitize_list([instance.filtered_resps[name] for instance in instances]),
            "filter": name,
            "doc_hash": hash_string(_dump(doc, indent=2)),
            "prompt_hash": hash_string(self.asked[0][0]),
            "target_hash": hash_string(target),
        }


@dataclass(frozen=True, slots=True)
class SampleLog:
    """Collects the log lines of the answers to one task, as lm-eval's EvaluationTracker writes them."""

    loaded: LoadedTask
    _lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _values: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, question: LoggedQuestion, instances: Sequence[Instance], results: Results) -> None:
        """Add the results of one answer to a question, held by its instances."""
        for name, result in results.items():
            metrics = _plain_metrics(result)
            line = question.line(self.loaded.built.task, instances, name)
            self._lines[name].append({**line, "metrics": [key for key in metrics if key != _WHY], **metrics})
            for metric, value in metrics.items():
                if metric != _WHY and value is not None:
                    self._values[metric, name].append(value)

    def write(self, path: Path) -> None:
        """Write the lines, filter by filter. Raises NotWritten."""
        with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{_dump(line)}\n" for line in chain(*self._lines.values()))

    def facts(self, lm: Any, suite: SuiteSpec) -> dict[str, Any]:
        """Plain content of the task's entries in a results file, including those about the model's tokenizer."""
        from lm_eval.loggers.utils import add_tokenizer_info
        from lm_eval.utils import hash_string

        task, spec, lines = self.loaded.built.task, self.loaded.spec, [*chain(*self._lines.values())]
        config = {key: value for key, value in task.dump_config().items() if key != "custom_dataset"}
        hashes = (line[key] for line in lines for key in ("doc_hash", "prompt_hash", "target_hash"))
        tokenizer: dict[str, Any] = {}
        add_tokenizer_info(tokenizer, lm)
        content = {
            "results": {"alias": config.get("task_alias", config["task"]), **self._aggregate()},
            "config": config,
            "version": task.VERSION,
            "n_shot": spec.shots,
            "higher_is_better": task.higher_is_better(),
            "n_samples": {"original": len(task.eval_docs), "effective": len({line["doc_id"] for line in lines})},
            "task_hash": hash_string("".join(hashes)),
            "tokenizer": tokenizer,
            "chat_template": lm.chat_template(True) if suite.chat else None,
            "lm_eval_version": version("lm_eval"),
        }
        return dict(_finite(json.loads(_dump(content))))

    def _aggregate(self) -> dict[str, Any]:
        """Metrics over all answers with their standard errors, except those that lm-eval would bootstrap."""
        from lm_eval.api.metrics import mean, mean_stderr

        by_metric = self.loaded.built.task.aggregation()
        scores: dict[str, Any] = {"sample_len": max(map(len, self._values.values()), default=0)}
        for (metric, name), values in self._values.items():
            aggregate = by_metric.get(metric, mean)
            known = aggregate is mean and len(values) > 1
            scores[f"{metric},{name}"] = aggregate(values)
            scores[f"{metric}_stderr,{name}"] = mean_stderr(values) if known else "N/A"
        return scores


_WHY = "why"


def _number_keys(name: str, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{name}_{number}", value) for number, value in enumerate(values))


def _plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Values by metric; for our own graders the value and the reason, if any."""
    graded = metrics.get(SCORE)
    if not isinstance(graded, Grade):
        return dict(metrics)
    return {**metrics, SCORE: graded.value, **({_WHY: graded.why} if graded.why else {})}


def _dump(content: Any, indent: int | None = None) -> str:
    """JSON as lm-eval writes and hashes it."""
    from lm_eval.utils import handle_non_serializable

    return json.dumps(content, indent=indent, default=handle_non_serializable, ensure_ascii=False)


def _finite(content: Any) -> Any:
    """The content with None for numbers that JSON cannot represent."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(item) for item in content]
    return None if isinstance(content, float) and not isfinite(content) else content
