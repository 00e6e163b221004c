"""Result files and samples: those of an evaluation against those that lm-eval's own command line writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval import utils
from lm_eval.tasks import TaskManager

from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole
from ktbench.eval.evaluate import evaluate_task
from ktbench.eval.lm.cli import main
from ktbench.eval.lm.samples import SampleLog
from ktbench.eval.session import EvalSession, Ids, Reference
from ktbench.eval.tasks import harness
from ktbench.eval.tasks.harness import Grade
from ktbench.eval.tasks.sources import load_task
from ktbench.report.write import write_report
from ktbench.results import Log, Run, read_run
from ktbench.spec.errors import RequestError
from ktbench.spec.lm_eval import LMEvalNames
from ktbench.spec.record import Cell, Environment, Header, Outcome, Part
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.wire import spec_id
from tests.eval.lm.checkpoints import Checkpoint, cell_of
from tests.eval.tasks.scripted import ScriptedLM, a_number
from tests.tiny import tiny_cell

CREATED = "2025-01-31T12:30:05+00:00"
IDS = Ids(code="c", env="e", created=datetime.fromisoformat(CREATED))
COMMON = """
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
fewshot_split: test
fewshot_config: {sampler: first_n}
doc_to_text: "question: {{question}} answer:"
"""
TASKS = {
    "tiny_choice": 'output_type: multiple_choice\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{target}}"\n'
    "metadata: {version: 2.0}",
    "tiny_written": 'output_type: generate_until\ndoc_to_target: "{{choices[0]}}"\nnum_fewshot: 1\n'
    'generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false, temperature: 0.0}\n'
    "filter_list: [{name: strict, filter: [{function: regex, regex_pattern: o}, {function: take_first}]}, "
    "{name: loose, filter: [{function: take_first}]}]\n"
    "metric_list: [{metric: exact_match, ignore_case: true}]",
}
SUITE = SuiteSpec(
    name="s",
    batch=1,
    tasks=(
        TaskSpec(name="choosing", source="lm_eval/tiny_choice"),
        TaskSpec(name="writing", source="lm_eval/tiny_written", shots=1),
    ),
)


@pytest.fixture(scope="module")
def checkpoint(checkpoints: dict[str, Checkpoint]) -> Checkpoint:
    return checkpoints["deepseek_v3"]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two tasks, where both find them."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    monkeypatch.setattr(harness, "_places", lambda: dict.fromkeys(TASKS, tmp_path / "tasks"))
    monkeypatch.setattr(harness, "_manager", harness._manager.__wrapped__)
    rows = [{"question": f"what is {i}?", "choices": ["one", "two"], "target": i % 2} for i in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    for name, content in TASKS.items():
        text = f"task: {name}\n{content}{COMMON.replace('FILE', str(file))}"
        (tmp_path / "tasks" / f"{name}.yaml").write_text(text)
    return tmp_path / "tasks"


def planned(checkpoint: Checkpoint) -> Cell:
    spec = cell_of(checkpoint)
    return Cell(label="base", spec=spec, spec_id=spec_id(spec))


def header(cell: Cell, suite: SuiteSpec) -> Header:
    parts = (Part(name="", title="t", baseline="base"),)
    return Header(
        run="r", title="t", ablation="a", created=CREATED, command=("eval",), parts=parts, cells=(cell,),
        measure=MeasureSpec(), code_id="c", env_id="e", suite=suite,
    )  # fmt: skip


def evaluated(folder: Path, cell: Cell, suite: SuiteSpec = SUITE) -> Run:
    """The run of one cell, each task logged with its samples beside the log."""
    log = Log(folder)
    log.append(header(cell, suite), Environment(env_id="e", code_id="c", facts={"versions": {"transformers": "5"}}))
    generator = open_generator([cell.spec], HostRole(cores=1))
    checkpoint = str(cell.spec.model.path)
    session = EvalSession.open(generator, checkpoint, suite, folder / "answers", IDS, lambda *_: None)
    reference, names = Reference(path=folder / "none", is_this=True), LMEvalNames.of(suite, CREATED)
    for task in suite.tasks:
        result, samples = session.evaluate(
            cell, task.name, reference, folder / names.folder(cell) / names.samples(task.name)
        )
        log.append(*samples, result)
    session.close()
    log.close()
    return read_run(folder)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def keys_of(content: Any, depth: int) -> Any:
    """The keys of nested mappings, so many deep."""
    if not isinstance(content, Mapping) or depth == 0:
        return None
    return {key: keys_of(value, depth - 1) for key, value in content.items()}


def of_lm_eval(checkpoint: Checkpoint, tasks: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that lm-eval's own command line writes, with our model."""
    model = f"path={checkpoint.folder},threads=1"
    options = ["--tasks", ",".join(TASKS), "--include_path", str(tasks), "--batch_size", "1"]
    words = ["lm-eval", "run", "--model", "ktbench", "--model_args", model, *options]
    monkeypatch.setattr(sys, "argv", [*words, "--output_path", str(out), "--log_samples"])
    assert main() == 0
    (folder,) = out.iterdir()
    return folder


def test_files_are_those_of_lm_eval(
    checkpoint: Checkpoint, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = of_lm_eval(checkpoint, tasks, tmp_path / "out", monkeypatch)
    run = evaluated(tmp_path / "run", planned(checkpoint))
    (written,) = write_report(run, ["lm_eval"])
    ours = written.parent
    seen, truth = json.loads(written.read_text()), json.loads(next(theirs.glob("results_*.json")).read_text())
    assert seen.keys() == truth.keys()
    for entry in ("results", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples", "task_hashes"):
        assert seen[entry] == truth[entry], entry
    assert keys_of(seen["configs"], 2) == keys_of(truth["configs"], 2)
    assert seen["config"].keys() == truth["config"].keys()
    for entry in ("tokenizer_eos_token", "tokenizer_pad_token", "eot_token_id", "max_length", "chat_template"):
        assert seen[entry] == truth[entry], entry
    for name in TASKS:
        (mine,), (other,) = (folder.glob(f"samples_{name}_*.jsonl") for folder in (ours, theirs))
        assert read_lines(mine) == read_lines(other)
        assert utils.get_file_task_name(mine.name) == name


def test_tools_of_lm_eval_read_them(checkpoint: Checkpoint, tasks: Path, tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", planned(checkpoint))
    write_report(run, ["lm_eval"])
    names = [str(path) for path in (tmp_path / "run").rglob("*.json*")]
    (results,) = utils.get_results_filenames(names)
    samples = utils.get_sample_results_filenames(names)
    assert len(samples) == len(TASKS)
    assert {utils.get_file_datetime(name) for name in samples} == {"2025-01-31T12-30-05"}
    content = json.loads(Path(results).read_text())
    table = utils.make_table(content)
    assert all(name in table for name in TASKS)
    assert "exact_match" in table
    assert (
        utils.sanitize_model_name(content["model_name"]) == content["model_name_sanitized"] == Path(results).parent.name
    )
    rows = datasets.load_dataset(
        "json", data_files=sorted(samples)[0], split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(rows) == 4
    assert {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "doc_hash", "acc"} <= {*rows.features}


def test_results_are_made_of_the_log_alone(checkpoint: Checkpoint, tasks: Path, tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", planned(checkpoint))
    (first,) = write_report(run, ["lm_eval"])
    text = first.read_text()
    first.unlink()
    (again,) = write_report(read_run(tmp_path / "run"), ["lm_eval"])
    assert (again, again.read_text()) == (first, text)


def test_answers_count_where_samples_cannot_be_written(checkpoint: Checkpoint, tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lm_eval").write_text("in the way")
    run = evaluated(tmp_path / "run", planned(checkpoint))
    assert {end.outcome for end in run.task_results} == {Outcome.OK}
    assert all("samples_tiny" in end.lm_eval["samples_missing"] for end in run.task_results)
    assert len(run.sample_results) == 8


def test_a_run_without_answers_to_such_tasks_has_no_results(tmp_path: Path) -> None:
    log = Log(tmp_path / "run")
    log.append(header(tiny_cell("base"), SUITE))
    log.close()
    with pytest.raises(RequestError, match="report lm_eval: is for answers to lm-eval's tasks, this run has none"):
        write_report(read_run(tmp_path / "run"), ["lm_eval"])


SOURCES = ("gsm8k", "mmlu/anatomy", "mmlu_pro/law", "strategyqa", "ifeval", "humaneval", "mbpp", "nano/chain")


@pytest.mark.parametrize("source", [*SOURCES, "livebench/reasoning/web_of_lies_v2"])
def test_tasks_of_every_source_are_logged(source: str, data: Path, tmp_path: Path) -> None:
    spec = TaskSpec(name="t", source=source, samples=2, temperature=0.5)
    suite = SuiteSpec(
        name="s", tasks=(spec,), data_dir=str(data), limit=2, seed=7, confirm_unsafe=True, release="2024-11-25"
    )
    loaded, lm = load_task(spec, suite), ScriptedLM(a_number)
    log = SampleLog(loaded)
    answers = list(evaluate_task(loaded, lm, suite, log))
    log.write(tmp_path / "samples.jsonl")
    lines = [one for one in read_lines(tmp_path / "samples.jsonl") if one["filter"] == loaded.built.filter]
    assert [(loaded.questions[one["doc_id"]], one[loaded.built.metric]) for one in lines] == [
        (one.question, one.value) for one in answers
    ]
    asked = {one["arguments"]["gen_args_0"]["arg_0"] for one in lines}
    assert asked == {*lm.prompts}
    if loaded.decodes:
        assert len({one["arguments"]["gen_args_0"]["arg_1"]["seed"] for one in lines}) == len(lines) == 4
    facts = log.facts(lm, suite)
    json.dumps(facts, allow_nan=False)
    assert facts["n_samples"]["effective"] == 2
    assert facts["results"][f"{loaded.built.metric},{loaded.built.filter}"] == pytest.approx(
        sum(one.value or 0.0 for one in answers) / 4
    )


def test_what_cannot_be_graded_has_no_value_but_a_reason(data: Path, tmp_path: Path) -> None:
    spec = TaskSpec(name="t", source="ifeval")
    suite = SuiteSpec(name="s", tasks=(spec,), data_dir=str(data), limit=1)
    loaded = load_task(spec, suite)
    loaded.built.task.config.process_results = lambda row, answers: {"score": Grade(value=None, why="unknown")}
    log = SampleLog(loaded)
    list(evaluate_task(loaded, ScriptedLM(a_number), suite, log))
    log.write(tmp_path / "samples.jsonl")
    (line,) = read_lines(tmp_path / "samples.jsonl")
    assert (line["score"], line["why"], line["metrics"]) == (None, "unknown", ["score"])
    assert "score,none" not in log.facts(ScriptedLM(a_number), suite)["results"]


def test_tasks_are_named_as_in_lm_eval_and_apart() -> None:
    sources = {"a b": "mmlu/anatomy", "c": "lm_eval/arc_easy", "one": "gsm8k", "two": "gsm8k"}
    suite = SuiteSpec(name="s", tasks=tuple(TaskSpec(name=name, source=one) for name, one in sources.items()))
    names = LMEvalNames.of(suite, CREATED)
    assert [*names.tasks.values()] == ["mmlu_anatomy", "arc_easy", "gsm8k_one", "gsm8k_two"]
    assert names.samples("one") == "samples_gsm8k_one_2025-01-31T12-30-05.jsonl"


def test_cells_have_folders_of_their_own() -> None:
    cells = [tiny_cell("base"), tiny_cell("+v deferral=1", avx512=True, deferral=1)]
    cells.append(replace(cells[0], part="other"))
    folders = [LMEvalNames.folder(cell) for cell in cells]
    assert len({*folders}) == 3
    assert all(folder.count("/") == 1 and not {*folder} & {*' <>:"|?*'} for folder in folders)
