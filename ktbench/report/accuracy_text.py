"""What holds for all answers of a run, in sentences: model, suite, how questions were put, what could not be graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from ktbench.report.conditions import ids_sentence, machines_sentence, software_sentence, system_sentence
from ktbench.report.template import phrase, sentences
from ktbench.report.text import SURE_MARK, extremes, names_by
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, arm_of_formats, is_graded, parts_of_average
from ktbench.results.answers import LOSSES
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.quantities.text import number
from ktbench.results.row import place
from ktbench.results.run import facts_of, the_part
from ktbench.results.scores import SURE
from ktbench.results.settings import model_title
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.sweep import FigureKind

# Of more arms and categories the figure shows the average alone.
MOST_DOTS = 50
_caption = partial(phrase, "captions.txt.j2")
_phrase = partial(phrase, "accuracy.txt.j2")


def accuracy_caption(run: Run, rows: Sequence[AccuracyRow]) -> str:
    """What the figure shows."""
    by, names = parts_of_average(rows)
    return _caption(
        "accuracy",
        title=run.header.title,
        kind=drawn_kind(run, rows),
        measures="" if is_graded(rows) else measured_text(rows),
        base=_base(rows),
        arm=arm_of_formats(rows),
        models=list(dict.fromkeys(model_title(one.model) for one in run.published)),
        by=by if names else "",
        is_averaged=len(rows) * (len(names) + 1) > MOST_DOTS,
        is_compared=any(one.change for row in rows for one in row.results),
        has_kl=any(one.kl for row in rows for one in row.results),
    )


def drawn_kind(run: Run, rows: Sequence[AccuracyRow]) -> FigureKind:
    """The kind of figure that a part asks for; `accuracy` where it is one of speeds, or of missing scores."""
    figure = the_part(run).figure
    return figure if figure == "frontier" or (figure in _KINDS and is_graded(rows)) else "accuracy"


_KINDS: tuple[FigureKind, ...] = ("accuracy", "deferral_accuracy", "precision_accuracy", "frontier")


def measured_text(rows: Sequence[AccuracyRow]) -> str:
    """What dots of measures show: drift from the baseline, or perplexity where nothing is compared with one."""
    of_arms = [one for row in rows for one in row.measures if not row.is_baseline]
    return _caption("measures", is_compared=any(one.change or one.metric not in LOSSES for one in of_arms))


def _base(rows: Sequence[AccuracyRow]) -> str:
    base = next((row.row for row in rows if row.is_baseline), None)
    if base is None:
        return "the baseline"
    formats = {(row.row.spec.precision, row.row.spec.device_precision) for row in rows}
    with_formats = f" ({base.spec.precision}, device role {base.spec.device_precision})" if len(formats) > 1 else ""
    return base.shown + with_formats


def accuracy_methods(run: Run, rows: Sequence[AccuracyRow]) -> tuple[str, ...]:
    """Statistics of what the rows show, and the software."""
    scores = [one.score for row in rows for one in row.results if one.score]
    metrics = {one.metric for row in rows for one in row.measures}
    tasks = run.header.suite.tasks if run.header.suite else ()
    return sentences(
        "accuracy_methods.txt.j2",
        scored=bool(scores),
        clustered=[f"{task.name} ({task.cluster})" for task in tasks if task.cluster],
        single=any(score.se is None for score in scores),
        changes=sum(one.change is not None for row in rows for one in row.results),
        losses=bool(metrics & {*LOSSES}),
        top1=bool(metrics - {*LOSSES}),
        right=any(one.kl for row in rows for one in row.results),
        confidence=f"{CONFIDENCE:.0%}",
        sure=SURE,
        mark=SURE_MARK,
        number=number,
        software=software_sentence(facts_of(run)),
    )


def accuracy_conditions(run: Run, rows: Sequence[AccuracyRow], settings: Sequence[str]) -> tuple[str, ...]:
    """Sentences for `rows`, those of `run`, a run of one part; what varies in `settings` is left to the columns."""
    suite, ends = run.header.suite, [end for row in rows for end in row.ends.values()]
    assert suite is not None
    base = next((row.row for row in rows if row.is_baseline), None)
    found = (
        "" if "model" in settings else _phrase("model", model=rows[0].row.spec.model),
        _phrase("suite", suite=suite, is_graded=any(row.results for row in rows)),
        *_questions(suite, rows),
        _deferral(rows),
        *_ungraded(suite, rows),
        *_cut(suite, rows),
        *_left_out(rows, settings),
        system_sentence(run, [row.row for row in rows], set(settings)),
        machines_sentence(run),
        ids_sentence(run, ends, base),
    )
    return tuple(filter(None, found))


def _questions(suite: SuiteSpec, rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """How prompts were built and sampled, once for the tasks of which that is the same."""
    alike = names_by((task.name, _question_text(task, rows)) for task in suite.tasks)
    for words, names in alike.items():
        of = f" ({', '.join(names)})" if len(alike) > 1 else ""
        yield f"Questions{of}: {words}." if words else ""


def _question_text(task: TaskSpec, rows: Sequence[AccuracyRow]) -> str:
    results = [one for row in rows for one in row.results if (one.kind, one.subject) == ("task", task.name)]
    return _phrase(
        "questions",
        task=task,
        has_results=bool(results),
        is_generated=any(one.tokens is not None for one in results),
        settings=dict.fromkeys(end.setting for row in rows if (end := row.ends.get(task.name)) and end.setting),
    )


def _deferral(rows: Sequence[AccuracyRow]) -> str:
    """Where deferral and skipping acted; nothing where no cell requests either."""
    engines = [row.row.spec.engine for row in rows]
    names = [name for name in ("deferral", "skipping") if any(getattr(engine, name) for engine in engines)]
    in_prefill = {engine.defer_prefill for engine in engines}
    idle = _without_decode(rows) if in_prefill == {False} else []
    return _phrase("deferral", names=names, in_prefill=in_prefill, idle=idle) if names else ""


def _without_decode(rows: Sequence[AccuracyRow]) -> list[str]:
    """Tasks whose answers were chosen by their likelihood, which prefill gives."""
    results = [one for row in rows for one in row.results if one.kind == "task" and one.graded]
    decoded = {one.subject for one in results if one.tokens is not None}
    return list(dict.fromkeys(one.subject for one in results if one.subject not in decoded))


def _ungraded(suite: SuiteSpec, rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """How many answers or texts count for nothing, by task and reason; the most of any cell."""
    most: Counter[tuple[str, str]] = Counter()
    for row in rows:
        most |= Counter(row.ungraded)
    for (task, why), count in most.items():
        yield _phrase("ungraded", is_measured=suite.task(task).is_measured, count=count, task=task, why=why)


def _cut(suite: SuiteSpec, rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """How many answers and prompts were cut off, from the least to the most of any cell."""
    for task in suite.tasks:
        ends = [end for row in rows if (end := row.ends.get(task.name)) and end.outcome.timed]
        for what in ("answers", "prompts"):
            counts = extremes(getattr(end, f"cut_{what}") for end in ends)
            if any(counts):
                yield _phrase(f"cut_{what}", task=task.name, counts=counts, requests=max(end.requests for end in ends))


def _left_out(rows: Sequence[AccuracyRow], settings: Sequence[str]) -> Iterator[str]:
    """Tasks that averages are made without, and of which rows where that is not so of all."""
    averaged = [row for row in rows if (average := row.result()) and average.score is not None]
    ungraded = {
        place(row.row, settings): tuple(one.subject for one in row.results if one.kind == "task" and not one.graded)
        for row in averaged
    }
    for tasks, places in names_by(ungraded.items()).items():
        of = "" if len(places) == len(averaged) else f" of {'; '.join(places)}"
        if tasks:
            yield f"The average{of} leaves out {', '.join(tasks)}, of which nothing can be graded here."
