"""A session evaluates cells that share weights: results, refusals, and answers from the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from examples.nano.model import BOS, encode, new_model, save
from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.generate import open_generator
from ktbench.engine.protocol import HostRole
from ktbench.eval.session import EvalSession, Ids, Reference
from ktbench.eval.tasks.nano import questions
from ktbench.eval.tasks.nano_questions import Question
from ktbench.eval.tasks.sources import inactive_feature
from ktbench.spec.engine import EngineSpec
from ktbench.spec.record import KL, SCORE, Cell, Evidence, Outcome, SampleResult
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.wire import spec_id

SORT = TaskSpec(name="sort", source="nano/sort", category="data_analysis")
DECODE = TaskSpec(name="decode", source="drift/decode")
TEXT = TaskSpec(name="text", source="wikitext2")
SUITE = SuiteSpec(name="s", tasks=(SORT, DECODE), limit=3, seed=7)
IDS = Ids(code="c", env="e", created=datetime(2026, 1, 31, tzinfo=UTC))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("nano")
    save(new_model(0, layers=2), path)
    return path


def cell(folder: Path, label: str = "base", **engine: object) -> Cell:
    config = inspect_checkpoint(folder)
    model = ModelSpec(name="n", config=config, full_layers=2, full_vocab=config["vocab_size"], path=str(folder))
    features = EngineSpec(threads=1, **engine)  # type: ignore[arg-type]
    spec = RunSpec(model=model, workload=WorkloadSpec(phase="decode", prompt=8, steps=2), engine=features)
    return Cell(label=label, spec=spec, spec_id=spec_id(spec))


def opened(cells: list[Cell], answers: Path, suite: SuiteSpec = SUITE) -> EvalSession:
    generator = open_generator([cell.spec for cell in cells], HostRole(cores=1))
    return EvalSession.open(generator, str(cells[0].spec.model.path), suite, answers, IDS, lambda done, of: None)


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[Cell]:
    return [cell(folder), cell(folder, "deferral=2", deferral=2), cell(folder, "skipping=6", skipping=6)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("answers")
    return path


@pytest.fixture(scope="module")
def session(cells: list[Cell], answers: Path) -> Iterator[EvalSession]:
    yield opened(cells, answers)


def reference(answers: Path, *, is_this: bool, task: str = "sort") -> Reference:
    return Reference(path=answers / "references" / f"{task}.logp", is_this=is_this)


def of_metric(scored: Iterable[SampleResult], metric: str) -> list[SampleResult]:
    return [one for one in scored if one.metric == metric]


def test_a_task_ends_with_its_answers_and_what_proves_them(cells: list[Cell], tmp_path: Path) -> None:
    result, scored = opened(cells, tmp_path).evaluate(cells[1], "sort", reference(tmp_path, is_this=False))
    assert (result.outcome, result.questions, result.requests, result.cached) == (Outcome.OK, 3, 3, 0)
    assert result.new_tokens == sum(one.tokens or 0 for one in scored) > 0
    assert result.prompt_tokens > 0
    seen = {one.feature: one.seen for one in result.evidence}
    assert seen["deferral"] == expected_deferrals(result.new_tokens)
    assert [one.value in (0.0, 1.0) for one in of_metric(scored, SCORE)] == [True] * 3
    assert len({one.question for one in scored}) == 3


def expected_deferrals(new_tokens: int) -> int:
    """The first of two layers defers two experts in every decode step; the first token of an answer takes none."""
    return 2 * (new_tokens - 3)


def test_what_the_same_cell_answered_before_is_not_asked_again(cells: list[Cell], tmp_path: Path) -> None:
    first, scored = opened(cells, tmp_path).evaluate(cells[0], "sort", reference(tmp_path, is_this=True))
    result, again = opened(cells, tmp_path).evaluate(cells[0], "sort", reference(tmp_path, is_this=True))
    assert (first.cached, result.cached, result.new_tokens) == (0, 3, 0)
    assert again == scored


def test_a_control_is_asked_again_what_its_baseline_has_answered(
    session: EvalSession, cells: list[Cell], answers: Path
) -> None:
    first, scored = session.evaluate(cells[0], "sort", reference(answers, is_this=True))
    control = replace(cells[0], role="control")
    result, again = session.evaluate(control, "sort", reference(answers, is_this=False))
    assert (result.cached, result.requests) == (0, first.requests)
    assert result.new_tokens > 0
    assert [one.value for one in of_metric(again, SCORE)] == [one.value for one in of_metric(scored, SCORE)]


def test_beside_each_score_stands_how_far_predictions_of_the_right_answer_are_from_the_unmodified_model_s(
    session: EvalSession, cells: list[Cell], answers: Path
) -> None:
    unmodified, deferring, skipping = (
        session.evaluate(one, "sort", reference(answers, is_this=n == 0))[1] for n, one in enumerate(cells)
    )
    names = [one.question for one in of_metric(unmodified, SCORE)]
    for scored in (unmodified, deferring, skipping):
        assert [one.question for one in of_metric(scored, KL)] == names
        assert {one.metric for one in scored} == {SCORE, KL}
    assert {one.value for one in of_metric(unmodified, KL)} == {0.0}
    means = [fmean(one.value or 0.0 for one in of_metric(scored, KL)) for scored in (deferring, skipping)]
    assert 0 < means[0] < means[1]
    asked = [question for question in questions(3) if question.task == "sort"]
    assert [one.weight for one in of_metric(skipping, KL)] == [len(question.answer) + 1 for question in asked]


def test_the_kl_is_that_of_plain_transformers(
    session: EvalSession, folder: Path, cells: list[Cell], answers: Path
) -> None:
    """In float64 from logits of Transformers' model with its experts as they are, and with six of them skipped."""
    session.evaluate(cells[0], "sort", reference(answers, is_this=True))
    _, scored = session.evaluate(cells[2], "sort", reference(answers, is_this=False))
    asked = [question for question in questions(3) if question.task == "sort"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    for question, found in zip(asked, of_metric(scored, KL), strict=True):
        log_p, log_q = (predicted(model, question, skipped) for skipped in (0, 6))
        expected = float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())
        assert found.value == pytest.approx(expected, rel=0.1)


@torch.inference_mode()
def predicted(model: PreTrainedModel, question: Question, skipped: int) -> Tensor:
    """Log-probabilities float64 of the right answer's tokens in one pass, whose decode steps skip the least experts."""
    prompt, answer = [BOS, *encode(question.prompt)], encode(f"{question.answer}\n")
    first = len(prompt) - 1

    def without_least(_: object, arguments: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        hidden, ids, gates = arguments
        kept = gates.scatter(1, gates.argsort(dim=1)[:, :skipped], 0.0)
        return hidden, ids, torch.cat([gates[:first], kept[first:]])

    hooks = [layer.mlp.experts.register_forward_pre_hook(without_least) for layer in model.model.layers]
    logits = model(torch.tensor([[*prompt, *answer[:-1]]]), use_cache=False).logits[0, first:]
    for hook in hooks:
        hook.remove()
    return logits.double().log_softmax(dim=1)


def test_drift_is_nothing_for_the_unmodified_model_and_something_for_another(
    session: EvalSession, cells: list[Cell], answers: Path
) -> None:
    result, own = session.evaluate(cells[0], "decode", reference(answers, is_this=True, task="decode"))
    assert "right answers to questions of the nano model's tasks" in result.setting
    assert {one.value for one in own if one.metric == "kl_nats"} == {0.0}
    assert {one.value for one in own if one.metric == "top1"} == {1.0}
    _, skipping = session.evaluate(cells[2], "decode", reference(answers, is_this=False, task="decode"))
    assert min(one.value or 0.0 for one in skipping if one.metric == "kl_nats") > 0
    assert result.questions == 3


def test_perplexity_says_what_text_it_is_of(folder: Path, cells: list[Cell], tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(" = One = \n a few words \n = Two = \n and <unk> more \n")
    suite = SuiteSpec(name="w", tasks=(TEXT,), data_dir=str(tmp_path))
    result, scored = opened(cells, tmp_path / "answers", suite).evaluate(
        cells[0], "text", reference(tmp_path, is_this=True)
    )
    assert result.setting.startswith("WikiText-2 test")
    assert {one.metric for one in scored} == {"nll_nats", "nll_nats_per_word", "nll_nats_per_byte"}


def test_what_the_engine_cannot_answer_is_unsupported(session: EvalSession, folder: Path, answers: Path) -> None:
    result, scored = session.evaluate(cell(folder, "auto", deferral="auto"), "sort", reference(answers, is_this=False))
    assert (result.outcome, scored) == (Outcome.UNSUPPORTED, ())
    assert "deferral=auto" in result.why


def test_a_feature_that_was_not_seen_makes_a_task_idle(
    session: EvalSession, cells: list[Cell], answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = Evidence(feature="skipping", asked=6, counter="skipped_experts", seen=0)
    with monkeypatch.context() as patch:
        patch.setattr(session, "_evidence", lambda spec, task, before: (unseen,))
        result, scored = session.evaluate(cells[2], "sort", reference(answers, is_this=False))
    assert (result.outcome, scored) == (Outcome.IDLE, ())
    assert "skipped_experts 0" in result.why
    again, _ = session.evaluate(cells[2], "sort", reference(answers, is_this=False))
    assert (again.outcome, again.cached) == (Outcome.OK, 0)  # what an idle cell answered is not used


def test_a_task_that_cannot_be_asked_costs_itself_alone(
    session: EvalSession, cells: list[Cell], answers: Path, tmp_path: Path
) -> None:
    lost = Reference(path=tmp_path / "nowhere.logp", is_this=False)
    result, scored = session.evaluate(cells[1], "decode", lost)
    assert (result.outcome, scored) == (Outcome.CRASHED, ())
    assert "nowhere.logp" in result.why
    result, scored = session.evaluate(cells[1], "sort", lost)
    assert result.outcome is Outcome.OK
    assert all(one.value is None and "nowhere.logp" in one.why for one in of_metric(scored, KL))
    assert all(one.value is not None for one in of_metric(scored, SCORE))


def test_a_task_with_nothing_to_ask_is_not_idle(session: EvalSession, cells: list[Cell]) -> None:
    session._lm.use(cells[1].spec)
    assert session._evidence(cells[1].spec, (), session._lm.generator.counters()) == ()


@pytest.mark.parametrize("feature", ["deferral", "skipping"])
def test_a_task_without_decode_steps_does_not_see_what_acts_in_them(folder: Path, feature: str) -> None:
    changed = cell(folder, **{feature: 2}).spec
    assert "engine.defer_prefill=true" in inactive_feature(changed, TEXT)
    assert inactive_feature(changed, SORT) == ""
    everywhere = replace(changed, engine=replace(changed.engine, defer_prefill=True))
    assert inactive_feature(everywhere, TEXT) == ""
    assert inactive_feature(cell(folder).spec, TEXT) == ""


def test_a_chat_template_names_the_day_of_the_run(folder: Path, cells: list[Cell], tmp_path: Path) -> None:
    """A cell that is evaluated on the next day gets the same prompts."""
    dated = opened(cells, tmp_path, replace(SUITE, tasks=(SORT,), chat=True))
    dated._lm.tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}: {{ messages[-1].content }}"
    dated.evaluate(cells[0], "sort", reference(tmp_path, is_this=True), tmp_path / "samples.jsonl")
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert [line.count("31 Jan 2026: ") for line in lines] == [1] * 3
