"""`eval`: what is paired with what, which model answers, and what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ktbench.cli import main
from ktbench.config import Request
from ktbench.resources import checkpoint_folder
from ktbench.run.request import eval_request, with_model
from ktbench.spec.cells import plan_cells


def labels(request: Request) -> list[tuple[str, str]]:
    cells = [cell for part in request.parts for cell in plan_cells(part.spec, part.sweep, part.name)]
    return [(cell.label, cell.spec.precision) for cell in cells]


def test_the_model_that_ships_answers_where_none_is_named() -> None:
    assert with_model(["+suite=nano"]) == ["model=nano", "+suite=nano"]
    assert with_model(["+suite=nano", "model.path=x"]) == ["+suite=nano", "model.path=x"]
    assert with_model(["+ablation=accuracy_deferral"]) == ["+ablation=accuracy_deferral"]


def test_the_unmodified_model_is_alone() -> None:
    request = eval_request(["+suite=nano"])
    assert labels(request) == [("base", "bf16")]
    assert request.parts[0].spec.model.name == "nano"
    assert request.title == "nano tasks: ktbench nano"
    assert request.sweep.name == "nano"


def test_a_cell_that_changes_numbers_is_beside_the_unmodified_model() -> None:
    deferring = eval_request(["+suite=nano", "engine.avx512=true", "engine.deferral=6"])
    assert labels(deferring) == [("base", "bf16"), ("+v deferral=6", "bf16")]
    quantised = eval_request(["+suite=nano", "engine.avx512=true", "precision=int8"])
    assert labels(quantised) == [("base bf16", "bf16"), ("+v int8", "int8")]


def test_a_study_names_its_own_baseline_and_answers_need_no_control() -> None:
    study = eval_request(["+ablation=accuracy_deferral", "sweep.baseline=+v+d+l"])
    assert len(labels(study)) == 17
    assert study.title == "Accuracy with deferred and with skipped experts"
    listed = eval_request(["+suite=nano", "engine.avx512=true", "engine.deferral=0,2"])
    assert not any("A/A" in label for label, _ in labels(listed))


@pytest.mark.parametrize(
    ("missing", "device", "baseline", "lines"),
    [
        ((), "cpu", "+v+d+l", 0),
        (("avx512", "amx"), "cpu", "+a+d+l", 1),
        ((), "cuda", "+v+d", 1),
        (("avx512", "amx"), "cuda", "+a+d", 2),
    ],
)
def test_a_study_has_arms_that_can_run(
    missing: tuple[str, ...], device: str, baseline: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = {name: "not there" if name in missing else "" for name in ("avx2", "avx512", "amx")}
    monkeypatch.setattr("ktbench.run.request.machine_capabilities", lambda: grants)
    study = eval_request(["+ablation=accuracy_deferral", f"engine.device={device}"])
    deferred, skipped = ([f"{baseline} {name}={n}" for n in range(1, 9)] for name in ("deferral", "skipping"))
    assert study.parts[0].sweep.arms == (baseline, *deferred, *skipped)
    assert study.parts[0].sweep.baseline == baseline
    assert len(study.notice.splitlines()) == lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "eval: name a suite with +suite=NAME; allowed are"),
        (["+suite=nano", "model=tiny"], "model=tiny: has synthetic weights, which cannot answer"),
        (["+suite=nano", "model=tiny,nano"], "model=tiny: has synthetic weights"),
        (["+suite=nano", "machine=paper_a100"], "machine=paper_a100: a simulation cannot answer"),
        (["+suite=nano", "system=transformers"], "system=transformers: eval"),
        (["+suite=nano", "workload=prefill"], "workload.phase=prefill: an evaluation has no workload"),
        (["+suite=humaneval"], "confirm_unsafe=true"),
        (["+suite=gsm8k", "data_dir=nowhere"], "data_dir=nowhere"),
        (["+suite=livebench", "suite.release=soon"], "release"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["run", "sweep", "trace", "record"])
def test_other_verbs_do_not_ask(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "model=nano", "+suite=nano"]) == 2
    assert "python -m ktbench eval model=nano +suite=nano" in capsys.readouterr().err


def test_a_plan_says_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+suite=nano", "limit=5", "engine.deferral=1"]) == 0
    assert "suite nano: 12 tasks of at most 5 questions each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["engine.deferral=1"], ["UNSUPPORTED: prefill for deferral=1: Expert Deferral acts in decode steps"]),
        (["engine.deferral=0,2", "tasks=[prefill]"], ["UNSUPPORTED: prefill for deferral=2: Expert Deferral acts in"]),
        (["engine.skipping=1"], ["UNSUPPORTED: prefill for skipping=1: Expert Skipping acts in decode steps"]),
        (["engine.deferral=1", "engine.defer_prefill=true"], []),
        (["engine.deferral=1", "tasks=[decode]"], []),
        ([], []),
    ],
)
def test_a_plan_says_which_tasks_cells_cannot_answer(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "+suite=drift", *words]) == 0
    seen = [line for line in capsys.readouterr().out.splitlines() if line.startswith("UNSUPPORTED")]
    assert len(seen) == len(lines)
    assert all(line.startswith(start) and "defer_prefill=true" in line for line, start in zip(seen, lines, strict=True))


def test_more_questions_than_have_contents_of_their_own_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "+suite=nano", "limit=501"]) == 2
    assert "limit=501: allowed are 1 to 500" in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused_before_anything_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Padding that was added to a tokenizer is no other model's: it is refused where a text has it."""
    nano = checkpoint_folder("evals/nano").resolve()
    for file in nano.iterdir():
        (tmp_path / file.name).symlink_to(file)
    content = json.loads((nano / "tokenizer.json").read_text())
    vocab = json.loads((nano / "config.json").read_text())["vocab_size"]
    (tmp_path / "tokenizer.json").unlink()
    for model, added, code in (({}, [{"id": vocab, "content": "<pad>"}], 0), ({"[new]": vocab}, [], 2)):
        changed = content | {"model": content["model"] | {"vocab": content["model"]["vocab"] | model}}
        changed["added_tokens"] = [*content["added_tokens"], *added]
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
        assert main(["plan", "+suite=nano", "limit=1", f"model.path={tmp_path}"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert f"has tokens up to {vocab}" in line
