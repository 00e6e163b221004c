"""One process that evaluates: a set of weights, the cells that share it, and their tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import AutoTokenizer

from ktbench.engine.generate import Generator
from ktbench.engine.loading.weights_id import weights_id
from ktbench.engine.protocol import Unsupported
from ktbench.eval.drift import DriftPlan, measure_drift
from ktbench.eval.evaluate import GradedAnswer, evaluate_task, measure_perplexity
from ktbench.eval.lm.cache import AnswerCache, identity_of
from ktbench.eval.lm.generation import date_templates
from ktbench.eval.lm.model import EngineLM
from ktbench.eval.lm.samples import SampleLog
from ktbench.eval.tasks.harness import LoadedTask, TextDocument
from ktbench.eval.tasks.sources import inactive_feature, load_task, needs_decode
from ktbench.eval.texts import draw_sample, drift_texts, wikitext2
from ktbench.files import NotWritten
from ktbench.resources import checkpoint_folder
from ktbench.spec.record import KL, Cell, Evidence, Outcome, SampleResult, TaskResult, collect, dishonest, idle_by_data
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ids:
    """The keys of stored answers besides the spec: the code and the machine.

    `created` is the run's creation time, used as the date in chat templates: the same in all its cells.
    """

    code: str
    env: str
    created: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The file with the unmodified model's predictions, and whether this cell is that model."""

    path: Path
    is_this: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answered:
    """Answers to a task, how its questions were worded, and lm-eval's log of them if it has such a task."""

    answers: tuple[GradedAnswer, ...]
    setting: str
    log: SampleLog | None = None


class EvalSession:
    """Evaluates the cells that share one set of weights. Made by `open`."""

    def __init__(self, lm: EngineLM, suite: SuiteSpec, answers: Path, ids: Ids) -> None:
        self._lm, self._suite, self._answers, self._ids = lm, suite, answers, ids
        self._loaded = cache(lambda task: load_task(task, suite))
        self._known: tuple[RunSpec, AnswerCache] | None = None

    @classmethod
    def open(
        cls, generator: Generator, path: str, suite: SuiteSpec, answers: Path, ids: Ids, progress: Progress
    ) -> EvalSession:
        """Load the weights of cells that share them, from the checkpoint `path`; answers are kept in `answers`.

        `progress(done, of)` is called with the answered requests of a task.
        """
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint_folder(path), local_files_only=True, trust_remote_code=False
        )
        return cls(EngineLM(generator, tokenizer, batch=suite.batch, progress=progress), suite, answers, ids)

    def close(self) -> None:
        """Release the weights."""
        self._lm.generator.close()

    def evaluate(
        self, cell: Cell, name: str, reference: Reference, samples: Path | None = None
    ) -> tuple[TaskResult, tuple[SampleResult, ...]]:
        """How a task of the suite ended for a cell, and its answers; `samples` is the file for lm-eval's log of these.

        UNSUPPORTED if the engine cannot run as the cell specifies; IDLE, without answers, if counters contradict it;
        CRASHED if the task cannot be loaded or the logits are not numbers.
        """
        task = self._suite.task(name)
        blank = self._blank(cell, name)
        if why := inactive_feature(cell.spec, task):
            return replace(blank, why=why), ()
        try:
            self._lm.use(cell.spec, self._cache(cell))
        except Unsupported as error:
            return replace(blank, why=str(error)), ()
        before, began_s = dict(self._lm.generator.counters()), perf_counter()
        try:
            answered = self._answer(cell.spec, task, reference)
        except ValueError as error:
            return replace(blank, outcome=Outcome.CRASHED, why=str(error)), ()
        ended = replace(
            blank,
            took_s=perf_counter() - began_s,
            questions=len({answer.question for answer in answered.answers}),
            answers=len({(answer.question, answer.metric, answer.sample) for answer in answered.answers}),
            evidence=self._evidence(cell.spec, answered.answers, before),
            setting="; ".join(filter(None, [answered.setting, *self._lm.generator.notes()])),
            **asdict(self._lm.tally),
        )
        if why := dishonest(ended.evidence):
            if cache := self._cache(cell):
                cache.forget()
            return replace(ended, outcome=Outcome.IDLE, why=why), ()
        setting = "; ".join(filter(None, [ended.setting, idle_by_data(ended.evidence)]))
        return replace(
            ended, outcome=Outcome.OK, setting=setting, lm_eval=self._write_log(answered.log, samples)
        ), tuple(SampleResult(cell=cell.key, task=name, **asdict(answer)) for answer in answered.answers)

    def _write_log(self, log: SampleLog | None, samples: Path | None) -> dict[str, Any]:
        """Write the samples, and return what the run's log keeps for lm-eval's results file."""
        if log is None:
            return {}
        facts = log.facts(self._lm, self._suite)
        if samples is None:
            return facts
        try:
            log.write(samples)
        except NotWritten as error:  # answers count even without them
            return facts | {"samples_missing": f"{samples}: {error.reason}"}
        return facts

    def _blank(self, cell: Cell, task: str) -> TaskResult:
        return TaskResult(
            cell=cell.key,
            label=cell.label,
            task=task,
            outcome=Outcome.UNSUPPORTED,
            provenance="measured",
            code_id=self._ids.code,
            env_id=self._ids.env,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _cache(self, cell: Cell) -> AnswerCache | None:
        """Earlier answers by the same engine on the same machine; None for a control, which answers anew."""
        if cell.role == "control":
            return None
        spec = cell.spec
        if self._known is None or self._known[0] != spec:
            setting = f"chat={self._suite.chat} batch={self._suite.batch} machine={self._ids.env}"
            identity = identity_of(spec, code_id=self._ids.code, tokenizer=self._lm.tokenizer, setting=setting)
            self._known = (spec, AnswerCache(self._answers, identity))
        return self._known[1]

    def _answer(self, spec: RunSpec, task: TaskSpec, reference: Reference) -> _Answered:
        suite, lm = self._suite, self._lm
        if task.is_drift:
            return self._measure_drift(spec, task, reference)
        if task.source == "wikitext2":
            corpus = wikitext2(suite.data_dir)
            documents = draw_sample(corpus.documents, suite.limit, suite.seed)
            return _Answered(answers=tuple(measure_perplexity(lm, documents)), setting=corpus.title)
        loaded: LoadedTask = self._loaded(task)
        log = SampleLog(loaded)
        with date_templates(self._ids.created):
            graded = tuple(evaluate_task(loaded, lm, suite, log))
        answers = (*graded, *self._divergences(spec, loaded, reference))
        return _Answered(answers=answers, setting=loaded.built.setting, log=log)

    def _measure_drift(self, spec: RunSpec, task: TaskSpec, reference: Reference) -> _Answered:
        corpus, plan = drift_texts(self._suite.data_dir), self._plan(spec, task)
        answers = self._compare(corpus.documents, plan, reference)
        return _Answered(answers=answers, setting=f"{corpus.title}; {plan.setting}")

    def _divergences(self, spec: RunSpec, loaded: LoadedTask, reference: Reference) -> Iterator[GradedAnswer]:
        """The divergence of predictions of the right answers from the unmodified model's, or the reason of a
        failure."""
        if not loaded.spec.is_compared:
            return
        texts = loaded.right_answers()
        try:
            compared = self._compare(texts, replace(self._plan(spec, loaded.spec), limit=None), reference)
        except ValueError as error:
            why = str(error)
            compared = tuple(
                GradedAnswer(question=text.name, metric=KL, value=None, weight=0.0, why=why) for text in texts
            )
        yield from (answer for answer in compared if answer.metric == KL)

    def _plan(self, spec: RunSpec, task: TaskSpec) -> DriftPlan:
        return DriftPlan(
            phase="decode" if needs_decode(task) else "prefill",
            model=weights_id(spec.model),
            vocab=spec.model.shape.vocab,
            limit=self._suite.limit,
            seed=self._suite.seed,
            batch=self._suite.batch,
        )

    def _compare(
        self, texts: Sequence[TextDocument], plan: DriftPlan, reference: Reference
    ) -> tuple[GradedAnswer, ...]:
        generator, tokenizer, path = self._lm.generator, self._lm.tokenizer, reference.path
        return tuple(
            measure_drift(generator, tokenizer, texts, plan=plan, reference=path, is_reference=reference.is_this)
        )

    def _evidence(
        self, spec: RunSpec, answers: Sequence[GradedAnswer], before: Mapping[str, int]
    ) -> tuple[Evidence, ...]:
        """Evidence from counters; none if nothing had to run, or cached answers left none with a decode step."""
        tally, now = self._lm.tally, self._lm.generator.counters()
        run = tally.requests - tally.cached
        compared = any(answer.metric == KL and answer.value is not None for answer in answers)  # never from the cache
        if not compared and (run == 0 or (tally.cached and tally.new_tokens <= run)):
            return ()
        moved = {name: count - before.get(name, 0) for name, count in now.items()}
        return collect(spec.engine.features, moved)
