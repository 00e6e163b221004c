"""MMLU, MMLU-Pro, GSM8K and StrategyQA, as lm-eval words them and as the paper's artifact does.

The artifact is that of KTransformers, branch sosp25-ae (ktransformers-utils/data and eval_accuracy.py).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ktbench.eval.tasks.harness import BuiltTask, Config, QuestionSource, build, hub_rows, shipped_config
from ktbench.eval.tasks.rows import Row, Rows, Splits, csv_rows, find_file, find_folder, json_lines, json_list
from ktbench.spec.suite import SuiteSpec

_MMLU_CHOICES = ("choice0", "choice1", "choice2", "choice3")
_MMLU_LETTERS = "0123"  # how the files write A to D
_PRO_FIELDS = {"question": str, "options": list, "answer": str, "cot_content": str, "category": str}
_PRO_LETTERS = "ABCDEFGHIJ"
_PRO_SPLITS = ("validation", "test")
_GSM8K_FIELDS = {"question": str, "answer": str}
_STRATEGYQA_FIELDS = {"question": str, "answer": bool}
_STRATEGYQA_FILES = ("strategyqa_train.json", "test.jsonl")  # one JSON list, as published, or one object per line
# The artifact's few-shot examples (strategy_qa/shots.md): the first four of six in Wei et al. 2022, arXiv:2201.11903.
_HINT = "Yes or no: "
STRATEGYQA_SHOTS = (
    (
        "Do hamsters provide food for any animals?",
        "Hamsters are prey animals. Prey are food for predators. Thus, hamsters provide food for some animals. "
        "So the answer is yes.",
    ),
    (
        "Could Brooke Shields succeed at University of Pennsylvania?",
        "Brooke Shields went to Princeton University. Princeton University is about as academically rigorous as the "
        "University of Pennsylvania. Thus, Brooke Shields could also succeed at the University of Pennsylvania. "
        "So the answer is yes.",
    ),
    (
        f"{_HINT}Hydrogen's atomic number squared exceeds number of Spice Girls?",
        "Hydrogen has an atomic number of 1. 1 squared is 1. There are 5 Spice Girls. Thus, Hydrogen's atomic number "
        "squared is less than 5. So the answer is no.",
    ),
    (
        f"{_HINT}Is it common to see frost during some college commencements?",
        "College commencement ceremonies can happen in December, May, and June. December is in the winter, so there "
        "can be frost. Thus, there could be frost at some commencements. So the answer is yes.",
    ),
)


def _read_mmlu(name: str, suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("cais/mmlu", name)
    files = {split: f"{split}/{name}_{split}.csv" for split in ("dev", "test")}
    folder = find_folder(suite.data_dir, "mmlu", list(files.values()))
    return {split: _mmlu_rows(folder / file) for split, file in files.items()}


def _mmlu_rows(path: Path) -> Rows:
    rows = csv_rows(path, ("question", *_MMLU_CHOICES, "answer"), _check_mmlu)
    return Rows(
        {"question": row["question"], "choices": [row[name] for name in _MMLU_CHOICES], "answer": int(row["answer"])}
        for row in rows
    )


def _check_mmlu(row: Row) -> None:
    if row["answer"] not in _MMLU_LETTERS or not row["answer"]:
        raise ValueError(f"answer={row['answer']}: allowed are {', '.join(_MMLU_LETTERS)}")


def _build_mmlu(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    config = shipped_config("mmlu/default", f"mmlu_{name}")
    return BuiltTask(task=build(config, splits), metric="acc", setting="the likeliest of 4 letters")


def _read_pro(name: str, suite: SuiteSpec) -> Splits:
    category = name.replace("_", " ")
    splits = _read_whole_pro(suite)
    rows = {split: Rows(row for row in held if row["category"] == category) for split, held in splits.items()}
    if empty := next((split for split in _PRO_SPLITS if not rows.get(split)), None):
        raise ValueError(f"mmlu_pro: the {empty} split has no question of the category {category}")
    return rows


def _read_whole_pro(suite: SuiteSpec) -> Splits:
    if suite.data_dir is None:
        return hub_rows("TIGER-Lab/MMLU-Pro")
    folder = find_folder(suite.data_dir, "mmlu_pro", [f"{split}.jsonl" for split in _PRO_SPLITS])
    return {split: json_lines(folder / f"{split}.jsonl", _PRO_FIELDS, _check_pro) for split in _PRO_SPLITS}


def _check_pro(row: Row) -> None:
    allowed = _PRO_LETTERS[: len(row["options"])]
    if not all(isinstance(option, str) for option in row["options"]):
        raise ValueError("options: must be a list of texts")
    if len(row["answer"]) != 1 or row["answer"] not in allowed:
        raise ValueError(f"answer={row['answer']}: allowed are {', '.join(allowed)}")


def _build_pro(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    from lm_eval.tasks.mmlu_pro import utils

    shots = {
        "sampler": "first_n",
        "split": "validation",
        "doc_to_text": utils.fewshot_to_text,
        "doc_to_target": utils.fewshot_to_target,
    }
    config = shipped_config("mmlu_pro", f"mmlu_pro_{name}")
    del config["process_docs"]  # the rows are already those of the subject
    config |= {"doc_to_text": utils.doc_to_text, "fewshot_config": shots}
    return BuiltTask(
        task=build(config, splits),
        metric="exact_match",
        filter="custom-extract",
        setting="right where `answer is (X)` is",
    )


def _read_gsm8k(name: str, suite: SuiteSpec, *, splits: tuple[str, ...] = ("test",)) -> Splits:
    if suite.data_dir is None:
        return hub_rows("openai/gsm8k", "main")
    folder = find_folder(suite.data_dir, "gsm8k", [f"{split}.jsonl" for split in splits])
    return {split: json_lines(folder / f"{split}.jsonl", _GSM8K_FIELDS, _check_gsm8k) for split in splits}


def _check_gsm8k(row: Row) -> None:
    if not re.search(r"#### *-?[\d,.]+\s*$", row["answer"]):
        raise ValueError("answer: must end with #### and a number")


def _build_gsm8k(name: str, splits: Splits, suite: SuiteSpec, *, config: str) -> BuiltTask:
    return _gsm8k(shipped_config("gsm8k", config), splits)


def _build_paper_gsm8k(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """The chains of thought in the artifact's words, with its length and stop string."""
    config = shipped_config("gsm8k", "gsm8k_cot")
    generation = {**config["generation_kwargs"], "until": ["\nQuestion"], "max_gen_toks": 1024}
    return _gsm8k({**config, "doc_to_text": "Question: {{question}}\nAnswer:", "generation_kwargs": generation}, splits)


def _gsm8k(config: Config, splits: Splits) -> BuiltTask:
    setting = "right where the last number of the answer is right (lm-eval's flexible-extract)"
    return BuiltTask(task=build(config, splits), metric="exact_match", filter="flexible-extract", setting=setting)


def _read_strategyqa(name: str, suite: SuiteSpec) -> Splits:
    """All 2,290 published questions that have answers, except those shown as few-shot examples."""
    if suite.data_dir is None:
        splits = hub_rows("ChilleD/StrategyQA")  # this copy has divided them
        questions = Rows(row for split in ("train", "test") for row in splits[split])
    else:
        path = find_file(suite.data_dir, "strategyqa", _STRATEGYQA_FILES)
        questions = (json_lines if path.suffix == ".jsonl" else json_list)(path, _STRATEGYQA_FIELDS)
    shown = {question.removeprefix(_HINT).lower() for question, _ in STRATEGYQA_SHOTS}
    return {"test": Rows(row for row in questions if row["question"].lower() not in shown)}


def _build_strategyqa(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """An answer that contains neither yes nor no is wrong; the artifact counts it as no."""
    yes_or_no = {"function": "regex", "regex_pattern": r"(?i)\b(yes|no)\b", "group_select": -1}
    config = {
        "task": "strategyqa",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{target if target is defined else 'yes' if answer else 'no'}}",
        "fewshot_config": {
            "sampler": "first_n",
            "samples": [{"question": question, "target": target} for question, target in STRATEGYQA_SHOTS],
        },
        "generation_kwargs": {
            "until": ["\n\n", "\nQuestion"],
            "max_gen_toks": 1024,
            "do_sample": False,
            "temperature": 0.0,
        },
        "filter_list": [{"name": "last", "filter": [yes_or_no, {"function": "take_first"}]}],
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
        ],
    }
    setting = "right where the last yes or no is"
    return BuiltTask(task=build(config, splits), metric="exact_match", filter="last", setting=setting)


SOURCES = (
    QuestionSource(prefix="mmlu", names=None, read=_read_mmlu, build=_build_mmlu, decodes=False),
    QuestionSource(prefix="mmlu_pro", names=None, read=_read_pro, build=_build_pro),
    QuestionSource(
        prefix="gsm8k",
        read=partial(_read_gsm8k, splits=("train", "test")),
        build=partial(_build_gsm8k, config="gsm8k"),
    ),
    QuestionSource(prefix="gsm8k_cot", read=_read_gsm8k, build=partial(_build_gsm8k, config="gsm8k_cot")),
    QuestionSource(prefix="paper/gsm8k", read=_read_gsm8k, build=_build_paper_gsm8k),
    QuestionSource(prefix="strategyqa", read=_read_strategyqa, build=_build_strategyqa),
)
