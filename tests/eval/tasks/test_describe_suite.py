"""A look at a suite before anything heavy is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ktbench.eval.tasks import sources
from ktbench.eval.tasks.sources import describe_suite, needs_decode
from ktbench.resources import install_command
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.eval.tasks.local import write_all


def suite_of(*sources: str, data: Path | None = None, **overrides: Any) -> SuiteSpec:
    tasks = tuple(TaskSpec(name=source.replace("/", "-"), source=source) for source in sources)
    return SuiteSpec(name="s", tasks=tasks, data_dir=None if data is None else str(data), **overrides)


def test_questions_are_counted_without_asking(data: Path) -> None:
    assert describe_suite(suite_of("nano/addition", "nano/chain")) == "2 tasks, 400 questions"
    assert describe_suite(suite_of("gsm8k", "mmlu/anatomy", "ifeval", data=data, limit=10)) == "3 tasks, 23 questions"
    assert describe_suite(suite_of("gsm8k", "nano/chain")) == "2 tasks, questions from the hub"


@pytest.mark.parametrize(
    ("file", "text", "source", "message"),
    [
        ("gsm8k/train.jsonl", '\n{"question": "q", "answer": "3"}\n', "gsm8k", ":2: answer: must end with #### and"),
        ("gsm8k/test.jsonl", "{}\n", "gsm8k", ":1: no field question"),
        ("mmlu/test/anatomy_test.csv", "{}\n", "mmlu/anatomy", ":1: the first line must be question,choice0"),
        (
            "mmlu/dev/anatomy_dev.csv",
            'question,choice0,choice1,choice2,choice3,answer\n"q\n?",a,b,c,d,4\n',
            "mmlu/anatomy",
            ":2: answer=4: allowed are 0, 1, 2, 3",
        ),
        (
            "mmlu_pro/test.jsonl",
            '{"question": "q", "options": ["x"], "answer": "B", "cot_content": "", "category": "law"}\n',
            "mmlu_pro/law",
            ":1: answer=B: allowed are A",
        ),
        ("humaneval/HumanEval.jsonl.gz", "text", "humaneval", ": is no whole gzip file"),
        (
            "mbpp/mbpp.jsonl",
            '{"task_id": 11, "text": "", "code": "", "test_setup_code": "", "test_list": ["assert 1"]}\n',
            "mbpp",
            ":1: test_list: must be a list of 3 texts",
        ),
        (
            "strategyqa/strategyqa_train.json",
            '[\n{"question": "q", "answer": "yes"}]',
            "strategyqa",
            ": row 1: answer: expected bool",
        ),
        (
            "ifeval/input_data.jsonl",
            '{"key": 1, "prompt": "p", "instruction_id_list": ["no:such"], "kwargs": [{}]}\n',
            "ifeval",
            ":1: instruction no:such is not known",
        ),
        ("livebench/questions/math__olympiad.jsonl", "[]\n", "livebench/math/olympiad", ":1: "),
        ("lm/test.jsonl", "3\n", "lm_eval/lm", ":1: expected a JSON object, got int"),
    ],
)
def test_malformed_files_are_refused_with_file_and_line(
    file: str, text: str, source: str, message: str, tmp_path: Path
) -> None:
    path = write_all(tmp_path) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        describe_suite(suite_of(source, data=tmp_path, confirm_unsafe=True))
    assert str(error.value).startswith(f"{path}{message}")
    assert "\n" not in str(error.value)


def test_files_that_are_missing_and_programs_are_refused(data: Path, tmp_path: Path) -> None:
    for source, wanted in (
        ("gsm8k", "train.jsonl and test.jsonl"),
        ("humaneval", "HumanEval.jsonl.gz or HumanEval.jsonl"),
        ("livebench/math/olympiad", "holds no LiveBench questions"),
        ("lm_eval/arc_easy", "<split>.jsonl, there or in arc_easy/"),
        ("wikitext2", "no WikiText-2 here"),
        ("drift/decode", "no WikiText-2 here"),
    ):
        with pytest.raises(ValueError, match=f"data_dir={tmp_path}|{tmp_path}: ") as error:
            describe_suite(suite_of(source, data=tmp_path, confirm_unsafe=True))
        assert wanted in str(error.value)
    with pytest.raises(ValueError, match="only with confirm_unsafe=true"):
        describe_suite(suite_of("mbpp"))
    with pytest.raises(ValueError, match="holds no question of LiveBench release 2023-01-01"):
        describe_suite(suite_of("livebench/reasoning/web_of_lies_v2", data=data, release="2023-01-01"))
    with pytest.raises(ValueError, match="release=soon: must be a date"):
        describe_suite(suite_of("livebench/reasoning/web_of_lies_v2", release="soon"))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs lm_eval, which is not installed") as refused:
        describe_suite(suite_of("nano/chain"))
    assert install_command("accuracy") in str(refused.value)


def test_the_look_loads_nothing_heavy(data: Path) -> None:
    code = (
        "import sys; from ktbench.eval.tasks.sources import describe_suite; from ktbench.spec.suite import *;"
        f"suite = SuiteSpec(name='s', data_dir={str(data)!r}, tasks=(TaskSpec(name='t', source='gsm8k'),));"
        "describe_suite(suite); sys.exit(len({'torch', 'lm_eval', 'datasets', 'transformers'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_which_tasks_take_decode_steps() -> None:
    decoding = {"nano/chain", "gsm8k", "drift/decode", "livebench/math/olympiad"}
    prefilling = {"mmlu/anatomy", "wikitext2", "drift/prefill"}
    found = {source: needs_decode(TaskSpec(name="t", source=source)) for source in decoding | prefilling}
    assert {source for source in found if found[source]} == decoding
