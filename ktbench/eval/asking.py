"""Puts the questions of a task to a model and has the answers graded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ktbench.eval.grade import Grade
from ktbench.eval.tasks.harness import templates_compiled_once
from ktbench.eval.tasks.loaded import LoadedTask
from ktbench.spec.scored import SCORE
from ktbench.spec.suite import SuiteSpec, TaskSpec

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

_KEPT = 4000  # characters of an answer
_SHOTS_SEED = 1234  # lm-eval's own, for the choice of worked examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer and its worth, in the words of `ktbench.spec.scored.Scored`."""

    question: str
    metric: str = SCORE
    value: float | None
    weight: float = 1.0
    sample: int = 0
    tokens: int | None = None
    answer: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Put:
    """A question as it is put for one sample: lm-eval's instances, which gather the replies."""

    question: str
    sample: int
    row: Mapping[str, Any]
    instances: Sequence[Instance]


def ask(loaded: LoadedTask, lm: TemplateLM, suite: SuiteSpec) -> Iterator[Answer]:
    """Answers to the questions of a task, sample by sample, put and graded as lm-eval's evaluator does.

    The model gets all requests at once. Worked examples that lm-eval draws are the same in every call. Questions that
    cannot be graded here are not asked; their answers have no value and say why.
    """
    task = loaded.built.task
    rows = task.eval_docs
    lacking = {index: why for index in loaded.asked if (why := loaded.built.lacks(rows[index]))}
    yield from (
        Answer(question=loaded.asked[index], value=None, sample=sample, why=why)
        for index, why in lacking.items()
        for sample in range(loaded.spec.samples)
    )
    task.set_fewshot_seed(_SHOTS_SEED)
    with templates_compiled_once():
        puts = [
            put
            for index in sorted(loaded.asked.keys() - lacking.keys())
            for put in _puts(loaded, index, rows[index], lm, suite)
        ]
    _reply(puts, loaded.spec, suite.seed, lm)
    for _, sample in groupby(sorted(puts, key=attrgetter("sample")), key=attrgetter("sample")):
        yield from _graded(loaded, list(sample), lm)


def _puts(loaded: LoadedTask, index: int, row: Mapping[str, Any], lm: TemplateLM, suite: SuiteSpec) -> Iterator[_Put]:
    """The question of a row once for each sample. Its worked examples are drawn here, so rows come in order."""
    task = loaded.built.task
    template = lm.apply_chat_template if suite.chat else None
    context = task.fewshot_context(
        row,
        num_fewshot=loaded.spec.shots,
        apply_chat_template=suite.chat,
        fewshot_as_multiturn=suite.chat,
        chat_template=template,
        gen_prefix=task.doc_to_prefix(row),
    )
    asked = task.construct_requests(
        doc=row,
        ctx=context,
        metadata=(task.task_name, index, task.config.repeats),
        apply_chat_template=suite.chat,
        chat_template=template,
    )
    instances = asked if isinstance(asked, list) else [asked]
    for sample in range(loaded.spec.samples):
        copies = [replace(one, resps=[], filtered_resps={}) for one in sorted(instances, key=attrgetter("idx"))]
        yield _Put(question=loaded.asked[index], sample=sample, row=row, instances=copies)


def _reply(puts: Sequence[_Put], spec: TaskSpec, seed: int, lm: TemplateLM) -> None:
    """Has the model answer; each instance gathers as many replies as lm-eval has its task repeated."""
    asked = [
        (instance, _request(instance, spec, sampling_seed(seed, put.question, put.sample, repeat)))
        for put in puts
        for instance in put.instances
        for repeat in range(instance.repeats or 1)
    ]
    asked.sort(key=lambda pair: pair[0].request_type)
    for kind, pairs in groupby(asked, key=lambda pair: pair[0].request_type):
        gathering, requests = zip(*pairs, strict=True)
        for instance, reply in zip(gathering, getattr(lm, kind)(list(requests)), strict=True):
            instance.resps.append(reply)


def _request(instance: Instance, spec: TaskSpec, seed: int) -> Instance:
    """The request of an instance, with the length and the sampling that the spec asks for."""
    if instance.request_type != "generate_until":
        return instance
    context, generation = instance.args
    length = {} if spec.max_new_tokens is None else {"max_gen_toks": spec.max_new_tokens}
    sampling = {"do_sample": spec.temperature > 0, "temperature": spec.temperature}
    if spec.temperature > 0:
        sampling |= {"top_p": spec.top_p, "seed": seed}
    return replace(instance, arguments=(context, {**generation, **length, **sampling}), resps=[], filtered_resps={})


def sampling_seed(seed: int, question: str, sample: int, repeat: int = 0) -> int:
    """The seed of one draw, 0 to 2⁶³ − 1: the same in every cell, another for each sample of a question."""
    text = f"{seed}/{question}/{sample}/{repeat}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


def _graded(loaded: LoadedTask, puts: Sequence[_Put], lm: TemplateLM) -> Iterator[Answer]:
    """The answers of one sample. Filters of lm-eval see all of them at once."""
    task = loaded.built.task
    task._instances = [instance for put in puts for instance in put.instances]
    task.apply_filters()
    with templates_compiled_once():
        grades = [_grade(loaded, put) for put in puts]
    for put, grade in zip(puts, grades, strict=True):
        yield Answer(
            question=put.question,
            value=grade.value,
            sample=put.sample,
            tokens=_new_tokens(put.instances[0].resps[0], lm) if loaded.decodes else None,
            answer=_text(put.instances)[:_KEPT],
            why=grade.why,
        )


def _grade(loaded: LoadedTask, put: _Put) -> Grade:
    """lm-eval's own score is the answer's value; a grader of ours says its."""
    replies = [instance.filtered_resps[loaded.built.filter] for instance in put.instances]
    worth = loaded.built.task.process_results(put.row, replies)[loaded.built.metric]
    return worth if isinstance(worth, Grade) else Grade(float(worth))


def _new_tokens(reply: str, lm: TemplateLM) -> int:
    """Tokens of a generated answer, as our own model counts them: with those that ended it."""
    counted: int | None = getattr(reply, "tokens", None)
    return len(lm.tok_encode(reply)) if counted is None else counted


def _text(instances: Sequence[Instance]) -> str:
    """What was generated, or the likeliest continuation."""
    if instances[0].request_type == "generate_until":
        return str(instances[0].resps[0])
    return str(max(instances, key=lambda one: one.resps[0][0]).args[-1]).strip()
