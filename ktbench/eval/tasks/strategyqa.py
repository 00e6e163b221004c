"""StrategyQA: yes or no after a chain of thought, as the paper puts it."""

from __future__ import annotations

from ktbench.eval.tasks.harness import build, hub_rows
from ktbench.eval.tasks.loaded import BuiltTask
from ktbench.eval.tasks.rows import Rows, Splits, find_file, json_lines, json_list
from ktbench.eval.tasks.source import Source
from ktbench.spec.suite import SuiteSpec

# The worked examples of the paper's artifact (ktransformers-utils/data/strategy_qa/shots.md of branch sosp25-ae): the
# first four of six in Wei et al. 2022, arXiv:2201.11903.
_HINT = "Yes or no: "
SHOTS = (
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
_FIELDS = {"question": str, "answer": bool}
_FILES = ("strategyqa_train.json", "test.jsonl")  # one JSON list, as published; or an object to a line


def _read(name: str, suite: SuiteSpec) -> Splits:
    found = _hub() if suite.data_dir is None else _local(suite.data_dir)
    shown = {question.removeprefix(_HINT).lower() for question, _ in SHOTS}
    return {"test": Rows(row for row in found if row["question"].lower() not in shown)}


def _hub() -> Rows:
    """All 2,290 published questions that have answers; this copy has divided them."""
    splits = hub_rows("ChilleD/StrategyQA")
    return Rows(row for split in ("train", "test") for row in splits[split])


def _local(data_dir: str) -> Rows:
    path = find_file(data_dir, "strategyqa", _FILES)
    return (json_lines if path.suffix == ".jsonl" else json_list)(path, _FIELDS)


def _build(name: str, splits: Splits, suite: SuiteSpec) -> BuiltTask:
    """An answer that says neither yes nor no is wrong; the artifact takes it for a no."""
    yes_or_no = {"function": "regex", "regex_pattern": r"(?i)\b(yes|no)\b", "group_select": -1}
    config = {
        "task": "strategyqa",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{target if target is defined else 'yes' if answer else 'no'}}",
        "fewshot_config": {"sampler": "first_n", "samples": [{"question": q, "target": a} for q, a in SHOTS]},
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


SOURCES = (Source(prefix="strategyqa", read=_read, build=_build),)
