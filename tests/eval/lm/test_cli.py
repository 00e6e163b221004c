"""lm-eval's own command line with our engine: a local task from end to end, and arguments it refuses."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from ktbench.eval.lm.cli import CommandLineLM, main, open_lm, register
from ktbench.spec.errors import RequestError
from tests.engine.engines import VECTOR, needs_vector
from tests.eval.lm.checkpoints import Checkpoint

pytestmark = needs_vector()

COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
fewshot_split: test
doc_to_text: "question: {{question}} answer:"
"""
CHOICE = 'task: tiny_choice\noutput_type: multiple_choice\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{target}}"'
WRITTEN = (
    'task: tiny_written\noutput_type: generate_until\ndoc_to_target: "{{choices[0]}}"\nnum_fewshot: 1\n'
    'generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false}\n'
    "metric_list: [{metric: exact_match}]"
)


@pytest.fixture(scope="module")
def checkpoint(checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints["deepseek_v3"]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two tasks; lm-eval's own thousands are not looked through."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    rows = [{"question": f"what is {i}?", "choices": ["one", "two"], "target": i % 2} for i in range(3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in (("choice", CHOICE), ("written", WRITTEN)):
        (tmp_path / f"{name}.yaml").write_text(content + COMMON.replace("FILE", str(file)))
    return tmp_path


def words(checkpoint: Checkpoint, tasks: Path, arguments: str = "") -> list[str]:
    model = f"path={checkpoint.folder},threads=1,max_length=256{arguments}"
    options = ["--tasks", "tiny_choice,tiny_written", "--include_path", str(tasks), "--batch_size", "2"]
    return [
        "lm-eval",
        "run",
        "--model",
        "ktbench",
        "--model_args",
        model,
        *options,
        "--output_path",
        str(tasks / "out"),
    ]


def test_a_task_from_end_to_end(
    checkpoint: Checkpoint, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words(checkpoint, tasks, f",precision=int8,{VECTOR.name}=true,dynamic=true,deferral=1")
    monkeypatch.setattr(sys, "argv", [*argv, "--apply_chat_template", "--log_samples"])
    assert main() == 0
    assert "tiny_choice" in capsys.readouterr().out
    (results,) = (tasks / "out").rglob("results*.json")
    found = json.loads(results.read_text())["results"]
    assert 0 <= found["tiny_choice"]["acc,none"] <= 1
    assert "exact_match,none" in found["tiny_written"]
    (samples,) = (tasks / "out").rglob("samples_tiny_written*.jsonl")
    context = json.loads(samples.read_text().splitlines()[0])["arguments"]["gen_args_0"]["arg_0"]
    assert context.startswith("<bos>[user] question:")
    assert context.count("[assistant]") == 2  # one of the worked example, one to be answered


def test_a_refusal_is_one_line(
    checkpoint: Checkpoint, tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", words(checkpoint, tasks, ",speed=9"))
    assert main() == 2
    assert "ktbench: model_args: speed is not known; allowed are path, precision," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"avx512": "yes"}, "engine.avx512: expected bool, got str"),
        ({"precision": "int3"}, "precision: invalid enum value 'int3', did you mean int8"),
        ({"precision": "int8"}, "precision=int8: "),
        ({"deferral": 99}, "engine.deferral=99"),
        ({"dynamic": True}, "engine.dynamic=True: "),
        ({"path": "/no/such"}, "model.path=/no/such: no such folder"),
        ({"batch_size": "auto"}, "batch_size=auto: allowed are whole numbers"),
        ({"tokenizer": "/no/such"}, "tokenizer=/no/such"),
        ({"trust_remote_code": True}, "trust_remote_code is not known"),
        ({"path": None}, "path is missing"),
    ],
)
def test_arguments_that_are_refused(checkpoint: Checkpoint, arguments: dict[str, Any], message: str) -> None:
    given = {"path": str(checkpoint.folder), "threads": 1} | arguments
    with pytest.raises(RequestError, match=message) as refused:
        open_lm({name: value for name, value in given.items() if value is not None}, {"device": "cuda:0"})
    assert "\n" not in str(refused.value)


def test_arguments_in_one_string(checkpoint: Checkpoint) -> None:
    lm = CommandLineLM.create_from_arg_string(
        f"path={checkpoint.folder},threads=1,{VECTOR.name}=true,packed_dense=true", {"batch_size": "3"}
    )
    assert lm.batch_size == 3
    assert lm.max_length == 512
    lm.generator.close()


def test_lm_eval_finds_the_name() -> None:
    from lm_eval.api.registry import get_model

    register()
    register()
    assert get_model("ktbench") is CommandLineLM
