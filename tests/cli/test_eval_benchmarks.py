"""Benchmarks from their files to their scores: `eval` on a tiny checkpoint, whose answers are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ktbench.cli import main
from ktbench.results import Run, read_run
from ktbench.results.find import find_run
from ktbench.spec.record import Outcome
from tests.eval.conftest import SHARED
from tests.eval.lm.checkpoints import Checkpoint, written
from tests.eval.tasks.local import write_lines

# Subjects of the published MMLU-Pro; a row of its schema, of which ktbench reads five fields.
SUBJECTS = yaml.safe_load((Path(__file__).parents[2] / "evals" / "mmlu_pro.yaml").read_text())["tasks"]
ASKED = SUBJECTS[::5]  # alike but for the name that selects their rows


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A token is a byte; every other one ends an answer, so that the lengths of the benchmarks cost nothing."""
    made = written("deepseek_v3", tmp_path_factory.mktemp("checkpoint") / "tiny")
    for name, changes in (
        ("config.json", {"max_position_embeddings": 1 << 14}),
        ("generation_config.json", {"eos_token_id": [made.tokenizer.eos_token_id, *range(0, 256, 2)]}),
    ):
        content = json.loads((made.folder / name).read_text()) | changes
        (made.folder / name).write_text(json.dumps(content))
    return made


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded_children: None) -> None:
    monkeypatch.chdir(tmp_path)


def shared(name: str) -> Path:
    """The published data set of that name; skips where it is not here."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"no {name} in a shared data folder next to this checkout")
    return SHARED / name


def mmlu_pro(folder: Path) -> Path:
    """Two questions of every subject, and five worked examples, in the schema of TIGER-Lab/MMLU-Pro."""

    def row(split: str, number: int, category: str) -> dict[str, Any]:
        return {
            "question_id": number,
            "question": f"Which of these {category} facts is number {number} of the {split} split?",
            "options": [f"fact {i}" for i in range(10)],
            "answer": "ABCDEFGHIJ"[number % 10],
            "answer_index": number % 10,
            "cot_content": f"A: Let's think step by step. The answer is ({'ABCDEFGHIJ'[number % 10]}).",
            "category": category,
            "src": f"cot_lib-{category}",
        }

    categories = [task["name"].replace("_", " ") for task in SUBJECTS]
    for split, count in (("validation", 5), ("test", 2)):
        write_lines(folder / f"{split}.jsonl", [row(split, i, one) for one in categories for i in range(count)])
    return folder


def strategyqa(folder: Path) -> Path:
    """Rows in the schema of strategyqa_train.json as published."""
    rows = [
        {
            "qid": f"b8677742616fef051f0{i}",
            "term": "Genghis Khan",
            "description": "founder and first Great Khan of the Mongol Empire",
            "question": f"Are more than {i} people today related to Genghis Khan?",
            "answer": i % 2 == 0,
            "facts": ["Julius Caesar had three children.", "Genghis Khan had sixteen children."],
            "decomposition": ["How many kids did Julius Caesar have?", "Is #2 greater than #1?"],
        }
        for i in range(4)
    ]
    (folder / "strategyqa_train.json").write_text(json.dumps(rows))
    return folder


def evaluated(checkpoint: Checkpoint, *words: str) -> Run:
    assert main(["eval", f"model.path={checkpoint.folder}", "engine.threads=1", "run_name=it", *words]) == 0
    return read_run(find_run("it"))


def samples(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The lines of lm-eval's files by task, which its results count too."""
    (results,) = (run.folder / "lm_eval").rglob("results_*.json")
    content = json.loads(results.read_text())
    found = {}
    for name in content["results"]:
        (file,) = results.parent.glob(f"samples_{name}_*.jsonl")
        found[name] = [json.loads(line) for line in file.read_text().splitlines()]
        assert content["n-samples"][name]["effective"] == len({one["doc_id"] for one in found[name]})
    return found


def test_mmlu_pro(checkpoint: Checkpoint, tmp_path: Path) -> None:
    data = mmlu_pro(tmp_path)
    names = [task["name"] for task in ASKED]
    run = evaluated(checkpoint, "+suite=mmlu_pro", f"data_dir={data}", "limit=1", f"tasks=[{','.join(names)}]")
    assert {end.outcome for end in run.task_results} == {Outcome.OK}
    found = samples(run)
    assert [*found] == [f"mmlu_pro_{name}" for name in names]
    for name, lines in found.items():
        (line,) = lines
        prompt, generation = line["arguments"]["gen_args_0"].values()
        category = name.removeprefix("mmlu_pro_").replace("_", " ")
        assert prompt.count(f"Which of these {category} facts") == 6
        assert prompt.endswith("Answer: Let's think step by step.")
        assert (generation["max_gen_toks"], generation["do_sample"]) == (2048, False)


def test_strategyqa(checkpoint: Checkpoint, tmp_path: Path) -> None:
    run = evaluated(checkpoint, "+suite=strategyqa", f"data_dir={strategyqa(tmp_path)}")
    (end,) = run.task_results
    assert (end.outcome, end.questions) == (Outcome.OK, 4)
    (lines,) = samples(run).values()
    assert [line["doc"]["question"] for line in lines] == [
        f"Are more than {i} people today related to Genghis Khan?" for i in range(4)
    ]
    assert [line["target"] for line in lines] == ["yes", "no", "yes", "no"]
    assert all(line["arguments"]["gen_args_0"]["arg_0"].count("Question: ") == 5 for line in lines)


def test_gsm8k(checkpoint: Checkpoint) -> None:
    run = evaluated(checkpoint, "+suite=gsm8k", f"data_dir={shared('gsm8k')}", "limit=2")
    (end,) = run.task_results
    assert (end.outcome, end.questions) == (Outcome.OK, 2)
    (lines,) = samples(run).values()
    assert {line["filter"] for line in lines} == {"strict-match", "flexible-extract"}
    assert all(line["arguments"]["gen_args_0"]["arg_0"].count("Q: ") == 9 for line in lines)


def test_mmlu_with_and_without_deferral(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    """What `plan` says of a cell whose feature no task sees is what its row says."""
    words = ["+suite=mmlu", f"data_dir={shared('mmlu')}", "limit=2", "tasks=[anatomy]", "engine.deferral=1"]
    assert main(["plan", f"model.path={checkpoint.folder}", *words]) == 0
    assert "UNSUPPORTED: anatomy for deferral=1: Expert Deferral acts in decode steps" in capsys.readouterr().out
    run = evaluated(checkpoint, *words)
    ends = {end.label: end for end in run.task_results}
    assert (ends["base"].outcome, ends["deferral=1"].outcome) == (Outcome.OK, Outcome.UNSUPPORTED)
    (lines,) = samples(run).values()
    for line in lines:
        assert len(line["arguments"]) == len(line["resps"]) == 4
        best = max(range(4), key=lambda i: float(line["filtered_resps"][i][0]))
        assert line["acc"] == float(best == int(line["target"]))
