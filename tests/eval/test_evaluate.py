"""Questions are prompted and graded as lm-eval's own evaluator does, once for each sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lm_eval.evaluator import evaluate

from ktbench.eval.evaluate import GradedAnswer, evaluate_task, sampling_seed
from ktbench.eval.tasks.harness import Grade, LoadedTask
from ktbench.eval.tasks.sources import load_task
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.eval.tasks.scripted import ScriptedLM, a_number

DREW_LM_EVAL = 1234  # the seed of lm-eval's simple_evaluate for worked examples


def suite_of(data: Path, task: TaskSpec, **overrides: Any) -> SuiteSpec:
    return SuiteSpec(name="s", tasks=(task,), data_dir=str(data), **overrides)


def evaluated(suite: SuiteSpec, lm: ScriptedLM) -> tuple[LoadedTask, list[GradedAnswer]]:
    loaded = load_task(suite.tasks[0], suite)
    return loaded, list(evaluate_task(loaded, lm, suite))


def a_letter(prompt: str, generation: Mapping[str, Any]) -> str:
    return f"the answer is ({'ABC'[len(prompt) % 3]})"


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("source", "shots"), [("gsm8k", 3), ("gsm8k_cot", 8), ("mmlu/anatomy", 5), ("mmlu_pro/law", 2), ("strategyqa", 4)]
)
def test_answers_are_those_of_the_evaluator(source: str, shots: int, chat: bool, limit: int | None, data: Path) -> None:
    ours, theirs = (ScriptedLM(a_letter if source == "mmlu_pro/law" else a_number) for _ in range(2))
    suite = suite_of(data, TaskSpec(name="t", source=source, shots=shots), limit=limit, chat=chat)
    loaded, answers = evaluated(suite, ours)
    task = loaded.built.task
    task.set_fewshot_seed(DREW_LM_EVAL)
    results = evaluate(
        lm=theirs,
        task_dict={"tasks": {task.task_name: task}},
        samples={task.task_name: list(loaded.questions)},
        bootstrap_iters=0,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
    )
    assert results is not None
    logged = [one for one in results["samples"][task.task_name] if one["filter"] == loaded.built.filter]
    assert [(int(one.question), one.value) for one in answers] == [
        (one["doc_id"], float(one[loaded.built.metric])) for one in logged
    ]
    assert ours.prompts == theirs.prompts
    mean = sum(one.value or 0.0 for one in answers) / len(answers)
    assert mean == pytest.approx(results["results"][task.task_name][f"{loaded.built.metric},{loaded.built.filter}"])


def test_the_same_questions_with_the_same_worked_examples_in_every_call(data: Path) -> None:
    suite = suite_of(data, TaskSpec(name="t", source="gsm8k", shots=3), limit=5)
    lm = ScriptedLM(a_number)
    loaded, first = evaluated(suite, lm)
    assert list(evaluate_task(loaded, lm, suite)) == first
    assert evaluated(suite, lm)[1] == first
    assert lm.prompts == 3 * lm.prompts[:5]
    assert list(loaded.questions) != list(range(5))
    other, _ = evaluated(replace(suite, seed=1), lm)
    assert other.questions != loaded.questions
    everything, _ = evaluated(replace(suite, limit=99), lm)
    assert list(everything.questions) == list(range(10))


def test_every_sample_has_a_seed_of_its_own(data: Path) -> None:
    spec = TaskSpec(name="t", source="gsm8k_cot", shots=8, samples=3, temperature=0.3, top_p=0.9, max_new_tokens=7)
    lm = ScriptedLM(lambda prompt, generation: str(generation["seed"] % 5))
    _, answers = evaluated(suite_of(data, spec, limit=4), lm)
    assert [one.sample for one in answers] == [0] * 4 + [1] * 4 + [2] * 4
    assert [one.question for one in answers] == 3 * [one.question for one in answers[:4]]
    for one in answers:
        expected = sampling_seed(0, one.question, one.sample) % 5
        assert (one.answer, one.value) == (str(expected), float(expected == int(one.question) % 5))
    seeds = {one.args[1]["seed"] for one in lm.requests}
    assert seeds == {sampling_seed(0, one.question, one.sample) for one in answers}
    assert len(seeds) == 12
    arguments = {key: value for key, value in lm.requests[0].args[1].items() if key not in ("seed", "until")}
    assert arguments == {"do_sample": True, "temperature": 0.3, "top_p": 0.9, "max_gen_toks": 7}


def test_greedy_requests_say_so_and_have_no_seed(data: Path) -> None:
    lm = ScriptedLM(a_number)
    evaluated(suite_of(data, TaskSpec(name="t", source="gsm8k"), limit=1), lm)
    (request,) = lm.requests
    assert {key: value for key, value in request.args[1].items() if key != "until"} == {
        "do_sample": False,
        "temperature": 0.0,
    }


def test_seeds_are_the_same_everywhere() -> None:
    assert sampling_seed(0, "HumanEval/0", 0) == 7424677094867268967
    assert sampling_seed(0, "HumanEval/0", 1) != sampling_seed(1, "HumanEval/0", 0)


def test_long_answers_are_cut_but_counted_and_graded_whole(data: Path) -> None:
    lm = ScriptedLM(lambda prompt, generation: "word " * 2000 + "1")
    _, answers = evaluated(suite_of(data, TaskSpec(name="t", source="gsm8k")), lm)
    assert {len(one.answer) for one in answers} == {4000}
    assert {one.tokens for one in answers} == {10_001}
    assert sum(one.value or 0.0 for one in answers) == 2


def test_tokens_are_those_that_the_model_counted(data: Path) -> None:
    class Counted(str):
        tokens = 77

    _, answers = evaluated(
        suite_of(data, TaskSpec(name="t", source="gsm8k"), limit=1), ScriptedLM(lambda *_: Counted("1"))
    )
    assert (answers[0].answer, answers[0].tokens) == ("1", 77)


def test_what_cannot_be_graded_is_not_asked_but_counted(data: Path) -> None:
    lm = ScriptedLM(a_number)
    spec = TaskSpec(name="t", source="gsm8k", samples=2, temperature=1.0)
    suite = suite_of(data, spec, limit=3)
    loaded = load_task(spec, suite)
    built = replace(loaded.built, lacks=lambda row: "no truth" if "0 and" in row["question"] else "")
    loaded = replace(loaded, built=built, questions={0: "0", 1: "1"})
    answers = list(evaluate_task(loaded, lm, suite))
    assert [(one.question, one.sample, one.value, one.why) for one in answers[:2]] == [
        ("0", 0, None, "no truth"),
        ("0", 1, None, "no truth"),
    ]
    assert len(lm.requests) == 2


def test_graders_of_ours_may_leave_an_answer_without_a_value(data: Path) -> None:
    lm = ScriptedLM(a_number)
    suite = suite_of(data, TaskSpec(name="t", source="ifeval"), limit=1)
    loaded = load_task(suite.tasks[0], suite)
    loaded.built.task.config.process_results = lambda row, answers: {"score": Grade(value=None, why="unknown")}
    (answer,) = evaluate_task(loaded, lm, suite)
    assert (answer.value, answer.why, answer.tokens) == (None, "unknown", len(answer.answer))


def test_answers_name_the_cluster_of_their_question(data: Path) -> None:
    suite = suite_of(data, TaskSpec(name="t", source="mmlu_pro/law", cluster="category"), limit=3)
    _, answers = evaluated(suite, ScriptedLM(a_letter))
    assert [one.cluster for one in answers] == ["law"] * len(answers)
    _, answers = evaluated(suite_of(data, TaskSpec(name="t", source="mmlu_pro/law"), limit=3), ScriptedLM(a_letter))
    assert {one.cluster for one in answers} == {""}


def test_a_cluster_that_no_row_names_is_refused(data: Path) -> None:
    suite = suite_of(data, TaskSpec(name="t", source="gsm8k", cluster="passage"), limit=1)
    with pytest.raises(ValueError, match="suite.tasks.t.cluster=passage: no such field; allowed are .*question"):
        load_task(suite.tasks[0], suite)


@pytest.mark.parametrize("value", [37.5, -1.0, float("nan")])
def test_a_metric_that_is_no_score_is_refused(value: float, data: Path) -> None:
    suite = suite_of(data, TaskSpec(name="t", source="gsm8k"), limit=1)
    loaded = load_task(suite.tasks[0], suite)
    loaded.built.task.config.process_results = lambda row, answers: {"exact_match": value}
    with pytest.raises(ValueError, match=f"suite.tasks.t.source=gsm8k: its metric exact_match gave {value:g}"):
        list(evaluate_task(loaded, ScriptedLM(a_number), suite))
