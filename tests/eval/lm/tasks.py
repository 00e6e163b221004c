"""Tasks of lm-eval on made-up rows, and what its evaluator logs of a model's answers to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from ktbench.eval.tasks.rows import Rows

Sample = dict[str, Any]
PROMPT = "Question: {{q}}\nAnswer:"
_LENGTHS = (60, 1, 8, 30, 3)  # words of questions; the longest leave no room in the context of a tiny model


def rows(words: Sequence[str], count: int, seed: int) -> Rows:
    """Questions of unlike lengths with four choices of unlike lengths, of which one is right."""
    draw = Random(seed)

    def drawn(length: int) -> str:
        return " ".join(draw.choices(words, k=length))

    return Rows(
        {"q": drawn(_LENGTHS[i % 5]), "a": drawn(3), "choices": [drawn(n) for n in (1, 1, 2, 5)], "right": i % 4}
        for i in range(count)
    )


def _task(name: str, words: Sequence[str], count: int, **config: Any) -> ConfigurableTask:
    splits = {"test": rows(words, count, seed=1), "dev": rows(words, 4, seed=2)}
    usual = {
        "task": name,
        "custom_dataset": lambda **_: splits,
        "test_split": "test",
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "doc_to_text": PROMPT,
        "doc_to_target": "{{a}}",
    }
    return ConfigurableTask(config=usual | config)


_FILTERS = [
    {"name": "word", "filter": [{"function": "regex", "regex_pattern": r"(\w+)"}, {"function": "take_first"}]},
    {"name": "whole", "filter": [{"function": "take_first"}]},
]


def written(words: Sequence[str], count: int, stops: Sequence[str]) -> list[ConfigurableTask]:
    """Answers up to several strings, up to no string, of one token, and up to a string that is no list."""
    kinds: dict[str, dict[str, Any]] = {
        "stops": {"until": [*stops, "\n\n"], "max_gen_toks": 20},
        "open": {"until": [], "max_gen_toks": 9},
        "one": {"until": ["."], "max_gen_toks": 1},
        "line": {"until": "\n", "max_gen_toks": 12, "temperature": 0.0},
        "nothing": {"until": ["", "."], "max_gen_toks": 6},
    }
    return [
        _task(
            name,
            words,
            count,
            output_type="generate_until",
            generation_kwargs={"do_sample": False} | settings,
            metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            filter_list=_FILTERS,
        )
        for name, settings in kinds.items()
    ]


def scored(words: Sequence[str], count: int) -> list[ConfigurableTask]:
    """The likeliest of several texts, with and without the question, the likelihood of one, and of a whole text."""
    choice = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{right}}"}
    accuracies = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    informed = [*accuracies[:1], accuracies[0] | {"metric": "acc_mutual_info"}]
    return [
        _task("choice", words, count, **choice, metric_list=accuracies),
        _task("informed", words, count, **choice, metric_list=informed),
        _task("known", words, count, output_type="loglikelihood", metric_list=accuracies[:1]),
        _task(
            "rolling",
            words,
            count,
            output_type="loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{q}}",
            metric_list=[{"metric": "word_perplexity"}],
        ),
    ]


def logged(lm: Any, tasks: list[ConfigurableTask], **options: Any) -> dict[str, list[Sample]]:
    """The samples that lm-eval's evaluator logs, by task."""
    manager = TaskManager(include_defaults=False)
    results = simple_evaluate(lm, tasks=tasks, task_manager=manager, bootstrap_iters=0, **options)
    assert results is not None
    samples: dict[str, list[Sample]] = results["samples"]
    return samples


def likelihoods(sample: Sample) -> Iterator[tuple[float, bool]]:
    """Of every request of a sample, with whether it is what greedy decoding gives; False where that is not asked."""
    for (reply,) in sample["resps"]:
        yield reply if isinstance(reply, tuple) else (float(reply), False)
