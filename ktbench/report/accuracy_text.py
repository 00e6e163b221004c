"""What holds for all answers of a run, in sentences: model, suite, how questions were put, what could not be graded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from ktbench.report.conditions import machines_sentence, software_sentence, system_sentence
from ktbench.report.template import sentences
from ktbench.report.text import SURE_MARK, number
from ktbench.results import Run
from ktbench.results.accuracy import AccuracyRow, arm_of_formats, parts_of_average
from ktbench.results.answers import LOSSES
from ktbench.results.intervals import CONFIDENCE
from ktbench.results.row import place
from ktbench.results.run import facts_of, the_part
from ktbench.results.scores import SURE
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.suite import SuiteSpec, TaskSpec
from ktbench.spec.sweep import FigureKind

# Of more arms and categories the figure shows the average alone.
MOST_DOTS = 50
_BOLD = "bold: beyond noise"


def accuracy_caption(run: Run, rows: Sequence[AccuracyRow]) -> str:
    """What the figure shows."""
    return f"{run.header.title}: {_shows(drawn_kind(run, rows), run, rows)}."


def drawn_kind(run: Run, rows: Sequence[AccuracyRow]) -> FigureKind:
    """The kind of figure that a part asks for; where nothing is graded, or it asks for one of speeds, `accuracy`."""
    figure = the_part(run).figure
    return figure if figure in _KINDS and any(row.results for row in rows) else "accuracy"


_KINDS: tuple[FigureKind, ...] = ("accuracy", "deferral_accuracy", "precision_accuracy", "frontier")


def _shows(kind: FigureKind, run: Run, rows: Sequence[AccuracyRow]) -> str:
    if not any(row.results for row in rows):
        return measured_text(rows)
    if kind == "deferral_accuracy":
        models = " and ".join(dict.fromkeys(one.model for one in run.published))
        published = f", and as published of {models}" if models else ""
        return (
            f"scores in % and their change relative to {_base(rows)} in %, {_BOLD}{published}; below, the "
            "change of the average with its paired 95 % interval"
        )
    if kind == "precision_accuracy":
        return f"average score in %{arm_of_formats(rows)}, and its change relative to {_base(rows)} in %, {_BOLD}"
    if kind == "frontier":
        return (
            "decode speed against average score; whiskers: 95 % intervals; filled: no other arm is both as fast and as "
            "good, by the middles of the intervals"
        )
    by, names = parts_of_average(rows)
    over = "" if not names else f" by {by}" if len(rows) * (len(names) + 1) <= MOST_DOTS else " on average"
    compared = any(one.change for row in rows for one in row.results)
    beside = f", and their paired difference to {_base(rows)}" if compared else ""
    return f"scores{over}{beside}; whiskers: 95 % intervals"


def measured_text(rows: Sequence[AccuracyRow]) -> str:
    """What dots of measures show: drift from the baseline, or perplexity where nothing is compared with one."""
    of_arms = [one for row in rows for one in row.measures if not row.is_baseline]
    compared = any(one.change or one.metric not in LOSSES for one in of_arms)
    what = "how far predictions are from the baseline's" if compared else "perplexity"
    return f"{what}; whiskers: 95 % intervals over texts, or windows of them"


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
    return sentences(
        "accuracy_methods.txt.j2",
        scored=bool(scores),
        single=any(score.se is None for score in scores),
        changes=sum(one.change is not None for row in rows for one in row.results),
        losses=bool(metrics & {*LOSSES}),
        drift=bool(metrics - {*LOSSES}),
        confidence=f"{CONFIDENCE:.0%}",
        sure=SURE,
        mark=SURE_MARK,
        number=number,
        software=software_sentence(facts_of(run)),
    )


_AVERAGES = {
    "categories": "the mean of categories, each the mean of its tasks, each the mean of its questions",
    "tasks": "the mean of tasks, each the mean of its questions",
    "questions": "the mean of all questions",
}


def accuracy_conditions(run: Run, rows: Sequence[AccuracyRow], settings: Sequence[str]) -> tuple[str, ...]:
    """Sentences for `rows`, those of `run`, a run of one part; what varies in `settings` is left to the columns."""
    suite = run.header.suite
    assert suite is not None
    found = (
        "" if "model" in settings else _model(rows[0].row.spec),
        _suite(suite, rows),
        *_put(suite, rows),
        _deferral(rows),
        *_ungraded(suite, rows),
        *_left_out(rows, settings),
        system_sentence(run, [row.row for row in rows], set(settings)),
        machines_sentence(run),
        _ids(run, rows),
    )
    return tuple(filter(None, found))


def _model(spec: RunSpec) -> str:
    model, shape = spec.model, spec.model.shape
    weights = f"checkpoint {PurePath(model.path).name}" if model.path else f"synthetic weights, seed {model.seed}"
    depth = f"slice of {shape.layers} of {model.full_layers} layers" if model.is_slice else f"all {shape.layers} layers"
    return f"Model: {model.name}, {depth} ({weights}), {shape.experts} experts, top-{shape.top_k}."


def _suite(suite: SuiteSpec, rows: Sequence[AccuracyRow]) -> str:
    """Which questions, and what their score is."""
    graded = any(row.results for row in rows)
    parts = [
        f"{_counted(len(suite.tasks), 'task')}{_in_categories(suite)}",
        *([f"release {suite.release}"] if suite.release else []),
        f"at most {suite.limit} questions of each, chosen with seed {suite.seed}" if suite.limit else "all questions",
        "in the model's chat template" if suite.chat else "as plain text",
        f"in batches of up to {suite.batch}",
    ]
    average = f"; the average is {_AVERAGES[suite.average]}" if graded and len(suite.tasks) > 1 else ""
    return f"Suite: {suite.title or suite.name}, {', '.join(parts)}{average}."


def _in_categories(suite: SuiteSpec) -> str:
    named = [name for name in suite.categories if name]
    return f" in {len(named)} categories" if len(named) > 1 else ""


def _put(suite: SuiteSpec, rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """How questions were asked, once for the tasks that were put alike."""
    alike: dict[str, list[str]] = {}
    for task in suite.tasks:
        alike.setdefault(", ".join(filter(None, _words(task, rows))), []).append(task.name)
    for words, names in alike.items():
        of = f" ({', '.join(names)})" if len(alike) > 1 else ""
        yield f"Questions{of}: {words}." if words else ""


def _words(task: TaskSpec, rows: Sequence[AccuracyRow]) -> Iterator[str]:
    results = [one for row in rows for one in row.results if (one.kind, one.subject) == ("task", task.name)]
    if results:
        yield f"{task.shots}-shot"
    if any(one.tokens is not None for one in results):
        yield _sampling(task)
        yield f"answers of up to {task.max_new_tokens} tokens" if task.max_new_tokens else ""
    yield _setting(task, rows)


def _sampling(task: TaskSpec) -> str:
    if task.temperature == 0:
        return "greedy"
    nucleus = "" if task.top_p == 1 else f", top-p {task.top_p:g}"
    return f"{_counted(task.samples, 'sample')} at temperature {task.temperature:g}{nucleus}"


def _setting(task: TaskSpec, rows: Sequence[AccuracyRow]) -> str:
    """The settings that the ends of tasks report."""
    return "; ".join(dict.fromkeys(end.setting for row in rows if (end := row.ends.get(task.name)) and end.setting))


def _deferral(rows: Sequence[AccuracyRow]) -> str:
    """Where deferral and skipping acted; nothing where no cell asks for either."""
    engines = [row.row.spec.engine for row in rows]
    names = [name for name in ("deferral", "skipping") if any(getattr(engine, name) for engine in engines)]
    if not names:
        return ""
    act = "acts" if len(names) == 1 else "act"
    asked = {engine.defer_prefill for engine in engines}
    where = {1: "in prefill and in decode steps" if True in asked else "in decode steps, never in prefill"}
    said = where.get(len(asked), "in decode steps, and in prefill where engine.defer_prefill is true")
    idle = _without_decode(rows) if asked == {False} else []
    but = f"; not for {', '.join(idle)}, where nothing is decoded" if idle else ""
    return f"{' and '.join(names).capitalize()} {act} {said}{but}."


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
        if suite.task(task).is_measured:
            yield f"Without a value: {_counted(count, 'text')} of {task} ({why}), left out of the means."
        else:
            yield f"Not graded here: {_counted(count, 'answer')} of {task} ({why})."


def _left_out(rows: Sequence[AccuracyRow], settings: Sequence[str]) -> Iterator[str]:
    """Tasks that averages are made without, and of which rows where that is not so of all."""
    averaged = [row for row in rows if _has_average(row)]
    holders: dict[tuple[str, ...], list[str]] = {}
    for row in averaged:
        if ungraded := tuple(one.subject for one in row.results if one.kind == "task" and not one.graded):
            holders.setdefault(ungraded, []).append(place(row.row, settings))
    for tasks, places in holders.items():
        of = "" if len(places) == len(averaged) else f" of {'; '.join(places)}"
        yield f"The average{of} leaves out {', '.join(tasks)}, of which nothing can be graded here."


def _has_average(row: AccuracyRow) -> bool:
    average = row.result()
    return average is not None and average.score is not None


def _ids(run: Run, rows: Sequence[AccuracyRow]) -> str:
    ends = [end for row in rows for end in row.ends.values()]
    codes = dict.fromkeys([run.header.code_id, *(end.code_id for end in ends)])
    machines = dict.fromkeys([run.header.env_id, *(end.env_id for end in ends)])
    base = next((row.row for row in rows if row.is_baseline), None)
    spec = f", spec of {base.label} {base.spec_id}" if base else ""
    return f"Ids: run {run.header.run}, code {' and '.join(codes)}, machine {' and '.join(machines)}{spec}."


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
