"""GSM8K: as lm-eval puts it, with worked examples of the train split or chains of thought, and as the paper does."""

from __future__ import annotations

import re

from ktbench.eval.tasks.harness import Config, build, hub_rows, shipped_config
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Row, Splits, find_folder, json_lines
from ktbench.eval.tasks.source import Source
from ktbench.spec.suite import SuiteSpec

_FIELDS = {"question": str, "answer": str}


def _read(suite: SuiteSpec, *splits: str) -> Splits:
    if suite.data_dir is None:
        return hub_rows("openai/gsm8k", "main")
    folder = find_folder(suite.data_dir, "gsm8k", [f"{split}.jsonl" for split in splits])
    return {split: json_lines(folder / f"{split}.jsonl", _FIELDS, _ends_with_number) for split in splits}


def _ends_with_number(row: Row) -> None:
    if not re.search(r"#### *-?[\d,.]+\s*$", row["answer"]):
        raise ValueError("answer: must end with #### and a number")


def _built(config: Config, splits: Splits) -> BuiltTask:
    setting = "right where the last number of the answer is right (lm-eval's flexible-extract)"
    return BuiltTask(task=build(config, splits), metric="exact_match", filter="flexible-extract", setting=setting)


def _paper_config() -> Config:
    """The chains of thought, in the words, the length and up to the stop of the authors' artifact.

    KTransformers, branch sosp25-ae: ktransformers-utils/data/gsm8k/input.jsonl and eval_accuracy.py.
    """
    config = shipped_config("gsm8k", "gsm8k_cot")
    generation = {**config["generation_kwargs"], "until": ["\nQuestion"], "max_gen_toks": 1024}
    return {**config, "doc_to_text": "Question: {{question}}\nAnswer:", "generation_kwargs": generation}


SOURCES = (
    Source(
        prefix="gsm8k",
        read=lambda name, suite: _read(suite, "train", "test"),
        build=lambda name, splits, suite: _built(shipped_config("gsm8k", "gsm8k"), splits),
    ),
    Source(
        prefix="gsm8k_cot",
        read=lambda name, suite: _read(suite, "test"),
        build=lambda name, splits, suite: _built(shipped_config("gsm8k", "gsm8k_cot"), splits),
    ),
    Source(
        prefix="paper/gsm8k",
        read=lambda name, suite: _read(suite, "test"),
        build=lambda name, splits, suite: _built(_paper_config(), splits),
    ),
)
