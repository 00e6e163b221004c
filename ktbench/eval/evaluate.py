"""Evaluates a model on the questions of a task, and measures its perplexity on texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ktbench.eval.lm.samples import LoggedQuestion, Results, SampleLog
from ktbench.eval.tasks.harness import Grade, LoadedTask, TextDocument, fixed_seeds, templates_compiled_once
from ktbench.spec.record import SCORE
from ktbench.spec.suite import SuiteSpec, TaskSpec

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

_KEPT = 4000  # characters of an answer
_SHOTS_SEED = 1234  # lm-eval's own, for the choice of few-shot examples


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """One answer to a question with its value; the fields are those of `ktbench.spec.record.SampleResult`."""

    question: str
    metric: str = SCORE
    value: float | None
    weight: float = 1.0
    sample: int = 0
    tokens: int | None = None
    answer: str = ""
    why: str = ""
    cluster: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prompt:
    """A question for one sample: lm-eval's instances, which collect the replies."""

    question: str
    sample: int
    index: int
    row: Mapping[str, Any]
    instances: Sequence[Instance]


def evaluate_task(
    loaded: LoadedTask, lm: TemplateLM, suite: SuiteSpec, log: SampleLog | None = None
) -> Iterator[GradedAnswer]:
    """Graded answers to the questions of a task, sample by sample, prompted and graded as lm-eval's evaluator does.

    The model gets all requests at once. Few-shot examples drawn by lm-eval are the same in every call. Questions that
    cannot be graded here are left out; their answers have no value and a reason in `why`. `log` receives what lm-eval
    logs about an answer. Raises ValueError for a metric that is not a score from 0 to 1.
    """
    task = loaded.built.task
    with fixed_seeds():
        rows = task.eval_docs
    lacking = {index: why for index in loaded.questions if (why := loaded.built.lacks(rows[index]))}
    yield from (
        GradedAnswer(question=loaded.questions[index], value=None, sample=sample, why=why)
        for index, why in lacking.items()
        for sample in range(loaded.spec.samples)
    )
    task.set_fewshot_seed(_SHOTS_SEED)
    with fixed_seeds(), templates_compiled_once():
        prompts = [
            prompt
            for index in sorted(loaded.questions.keys() - lacking.keys())
            for prompt in _prompts(loaded, index, rows[index], lm, suite)
        ]
    _reply(prompts, loaded.spec, suite.seed, lm)
    for _, sample in groupby(sorted(prompts, key=attrgetter("sample")), key=attrgetter("sample")):
        yield from _grade_sample(loaded, list(sample), lm, partial(_log_results, suite, loaded.spec, log))


def _prompts(
    loaded: LoadedTask, index: int, row: Mapping[str, Any], lm: TemplateLM, suite: SuiteSpec
) -> Iterator[_Prompt]:
    """The question of a row, once per sample. Its few-shot examples are drawn here, so rows must come in order."""
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
    requests = task.construct_requests(
        doc=row,
        ctx=context,
        metadata=(task.task_name, index, task.config.repeats),
        apply_chat_template=suite.chat,
        chat_template=template,
    )
    instances = requests if isinstance(requests, list) else [requests]
    for sample in range(loaded.spec.samples):
        copies = [
            replace(instance, resps=[], filtered_resps={}) for instance in sorted(instances, key=attrgetter("idx"))
        ]
        yield _Prompt(question=loaded.questions[index], sample=sample, index=index, row=row, instances=copies)


def _reply(prompts: Sequence[_Prompt], spec: TaskSpec, seed: int, lm: TemplateLM) -> None:
    """Runs all requests; each instance collects as many replies as its lm-eval task has repeats."""
    pending = [
        (instance, _request(instance, spec, sampling_seed(seed, prompt.question, prompt.sample, repeat)))
        for prompt in prompts
        for instance in prompt.instances
        for repeat in range(instance.repeats or 1)
    ]
    pending.sort(key=lambda pair: pair[0].request_type)
    for kind, pairs in groupby(pending, key=lambda pair: pair[0].request_type):
        gathering, requests = zip(*pairs, strict=True)
        for instance, reply in zip(gathering, getattr(lm, kind)(list(requests)), strict=True):
            instance.resps.append(reply)


def _request(instance: Instance, spec: TaskSpec, seed: int) -> Instance:
    """The request of an instance, with the length and the sampling of the spec."""
    if instance.request_type != "generate_until":
        return instance
    context, generation = instance.args
    length = {} if spec.max_new_tokens is None else {"max_gen_toks": spec.max_new_tokens}
    sampling = {"do_sample": spec.temperature > 0, "temperature": spec.temperature}
    if spec.temperature > 0:
        sampling |= {"top_p": spec.top_p, "seed": seed}
    return replace(instance, arguments=(context, {**generation, **length, **sampling}), resps=[], filtered_resps={})


def sampling_seed(seed: int, question: str, sample: int, repeat: int = 0) -> int:
    """The seed of one draw, 0 to 2⁶³ − 1: the same in every cell, different for each sample of a question."""
    text = f"{seed}/{question}/{sample}/{repeat}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


Logged = Callable[[_Prompt, Results], None]


def _grade_sample(
    loaded: LoadedTask, prompts: Sequence[_Prompt], lm: TemplateLM, logged: Logged
) -> Iterator[GradedAnswer]:
    """The answers of one sample. Filters of lm-eval see all of them at once."""
    task = loaded.built.task
    task._instances = [instance for prompt in prompts for instance in prompt.instances]
    with fixed_seeds(), templates_compiled_once():
        task.apply_filters()
        results = [_results(task, prompt) for prompt in prompts]
        for prompt, result in zip(prompts, results, strict=True):
            logged(prompt, result)
    for prompt, result in zip(prompts, results, strict=True):
        value = result[loaded.built.filter][loaded.built.metric]  # of lm-eval's grader, or of one of ours
        grade = value if isinstance(value, Grade) else _grade(loaded, float(value))
        yield GradedAnswer(
            question=prompt.question,
            value=grade.value,
            sample=prompt.sample,
            tokens=_new_tokens(prompt.instances[0].resps[0], lm) if loaded.decodes else None,
            answer=_text(prompt.instances)[:_KEPT],
            why=grade.why,
            cluster=loaded.clusters.get(prompt.question, ""),
        )


def _grade(loaded: LoadedTask, value: float) -> Grade:
    """Raises ValueError for a value that is not a score, such as a BLEU in percent."""
    if not 0 <= value <= 1:
        raise ValueError(
            f"suite.tasks.{loaded.spec.name}.source={loaded.spec.source}: "
            f"its metric {loaded.built.metric} gave {value:g}, a score is 0 to 1"
        )
    return Grade(value)


def _results(task: Any, prompt: _Prompt) -> Results:
    """The results of the task's grader for the answer, by filter."""
    filters = prompt.instances[0].filtered_resps
    return {
        name: task.process_results(prompt.row, [instance.filtered_resps[name] for instance in prompt.instances])
        for name in filters
    }


def _log_results(suite: SuiteSpec, spec: TaskSpec, log: SampleLog | None, prompt: _Prompt, results: Results) -> None:
    if log is not None:
        seed = sampling_seed(suite.seed, prompt.question, prompt.sample)
        asked = [_request(instance, spec, seed).args for instance in prompt.instances]
        log.add(LoggedQuestion(index=prompt.index, row=prompt.row, asked=asked), prompt.instances, results)


def _new_tokens(reply: str, lm: TemplateLM) -> int:
    """Tokens of a generated answer, as counted by EngineLM, including those that ended it."""
    counted: int | None = getattr(reply, "tokens", None)
    return len(lm.tok_encode(reply)) if counted is None else counted


def _text(instances: Sequence[Instance]) -> str:
    """The generated text, or the most likely continuation."""
    if instances[0].request_type == "generate_until":
        return str(instances[0].resps[0])
    return str(max(instances, key=lambda instance: instance.resps[0][0]).args[-1]).strip()


_NOT_FINITE = "its log-likelihood is not finite"


def measure_perplexity(lm: TemplateLM, documents: Sequence[TextDocument]) -> Iterator[GradedAnswer]:
    """Three answers per document: `nll_nats` per token, `nll_nats_per_word` and `nll_nats_per_byte`.

    Each is weighted by the number of tokens, words or bytes in its mean, so that exp(Σ wv / Σ w) over documents is
    perplexity, word_perplexity and byte_perplexity, and bits_per_byte is the latter's logarithm to base 2. Words and
    bytes are those of the unchanged text in the file, tokens those of lm-eval's version of it. Texts longer than the
    model's context are processed in windows (`loglikelihood_rolling`).
    """
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    texts = [wikitext_detokenizer({"page": document.text}) for document in documents]
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={"page": document.text}, arguments=(text,), idx=index)
        for index, (document, text) in enumerate(zip(documents, texts, strict=True))
    ]
    for document, text, nats in zip(documents, texts, lm.loglikelihood_rolling(requests), strict=True):
        yield from _perplexity_answers(document, len(lm.tok_encode(text)), float(nats))


def _perplexity_answers(document: TextDocument, tokens: int, loglikelihood_nats: float) -> Iterator[GradedAnswer]:
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results

    results = process_results({"page": document.text}, (loglikelihood_nats,))
    counts = {
        "nll_nats": tokens,
        "nll_nats_per_word": results["word_perplexity"][1],
        "nll_nats_per_byte": results["byte_perplexity"][1],
    }
    known = isfinite(loglikelihood_nats)
    for metric, count in counts.items():
        value = -loglikelihood_nats / count if known else None
        why = "" if known else _NOT_FINITE
        yield GradedAnswer(question=document.name, metric=metric, value=value, weight=float(count), why=why)
