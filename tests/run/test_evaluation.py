"""Cells answer in a process of their own: what is kept, what a crash costs, and what a resumed run asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.engine.loading.progress import Loading
from ktbench.results import Log, Run, read_run
from ktbench.run import evaluation
from ktbench.run.child import ChildFailed
from ktbench.run.eval_process import EvalProgress, EvalRequest, reference_file
from ktbench.run.evaluation import EvalRunner, references_of, require_same_suite, result_text
from ktbench.run.request import CellPlan
from ktbench.spec.errors import RequestError
from ktbench.spec.record import KL, Cell, Environment, Header, Outcome, Part, SampleResult, TaskResult
from ktbench.spec.run_spec import MeasureSpec
from ktbench.spec.step.memory import MachineMemory
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.tiny import tiny_cell

SUITE = SuiteSpec(name="s", tasks=(TaskSpec(name="sum", source="math/sum"), TaskSpec(name="sort", source="data/sort")))
PARTS = (Part(name="", title="t", baseline="base"),)
MACHINE = Environment(env_id="e", code_id="c")
BASE, FUSED, DEFERRED = (
    tiny_cell("base"),
    tiny_cell("+v", avx512=True),
    tiny_cell("+v deferral=1", avx512=True, deferral=1),
)
QUANTISED = tiny_cell("+v int8", avx512=True, precision="int8")
Child = Callable[[EvalRequest, Callable[[EvalProgress], None]], None]


class Children:
    """Stands for the child: answers every task, dies where it is result_text to."""

    def __init__(self, *dies_at: tuple[str, str]) -> None:
        self.dies_at, self.asked = {*dies_at}, list[tuple[tuple[str, str], ...]]()

    def __call__(self, evaluation: EvalRequest, heard: Callable[[EvalProgress], None]) -> None:
        wanted = [(cell, task) for cell in evaluation.cells for task in evaluation.tasks[cell.key]]
        self.asked.append(tuple((cell.label, task) for cell, task in wanted))
        heard(EvalProgress(doing="loading"))
        heard(EvalProgress(loading=Loading(doing="packing", stage="packing", done_bytes=1, total_bytes=2)))
        for cell, task in wanted:
            if (cell.label, task) in self.dies_at:
                raise ChildFailed(-9, "ended by SIGKILL")
            heard(EvalProgress(result=ended(cell, task), samples=tuple(answers(evaluation, cell, task))))


def answers(evaluation: EvalRequest, cell: Cell, task: str) -> Iterator[SampleResult]:
    """A score and, of tasks that compare predictions, a divergence: without those of the baseline it has no value."""
    yield SampleResult(cell=cell.key, task=task, question="q", value=1.0)
    if not evaluation.suite.task(task).is_compared:
        return
    reference = evaluation.references[cell.key]
    file = reference_file(Path(evaluation.folder), reference, task)
    if reference == cell.key:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    value = 0.0 if file.is_file() else None
    yield SampleResult(cell=cell.key, task=task, question="q", metric=KL, value=value, weight=1.0)


def ended(cell: Cell, task: str, outcome: Outcome = Outcome.OK, why: str = "") -> TaskResult:
    return TaskResult(
        cell=cell.key, label=cell.label, task=task, outcome=outcome, why=why, provenance="measured",
        code_id="c", env_id="e", started="", questions=1,
    )  # fmt: skip


def execute(
    folder: Path,
    cells: Sequence[Cell],
    unsupported: dict[str, str] | None = None,
    previous: Run | None = None,
    suite: SuiteSpec = SUITE,
) -> Run:
    log = Log(folder)
    planned = CellPlan(cells=tuple(cells), unsupported=unsupported or {}, needed_bytes=0, memory=MachineMemory())
    header = Header(
        run="r", title="t", ablation="a", created="", command=("eval",), parts=PARTS, cells=tuple(cells),
        measure=MeasureSpec(), code_id="c", env_id="e", suite=suite,
    )  # fmt: skip
    if previous is None:
        log.append(header)
    log.append(MACHINE)
    examiner = EvalRunner(
        suite=suite, planned=planned, parts=PARTS, machine=MACHINE, log=log, folder=folder, created=""
    )
    try:
        examiner.run_all(previous)
    finally:
        log.close()
    return read_run(folder)


def test_cells_that_share_weights_share_a_process_and_the_baseline_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children()
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", children)
    run = execute(tmp_path, [QUANTISED, FUSED, BASE])
    both = [(label, task) for label in ("base", "+v") for task in ("sum", "sort")]
    assert children.asked == [tuple(both), (("+v int8", "sum"), ("+v int8", "sort"))]
    assert len(run.answers()) == 6


def test_a_crash_costs_the_cell_that_caused_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children(("+v", "sort"))
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", children)
    run = execute(tmp_path, [BASE, FUSED, DEFERRED])
    ends = {(end.label, end.task): end for end in run.ends().values()}
    assert ends["+v", "sort"].outcome is Outcome.CRASHED
    assert ends["+v", "sort"].why == "ended by SIGKILL"
    assert all(end.outcome is Outcome.OK for where, end in ends.items() if where != ("+v", "sort"))
    assert children.asked[1] == (("+v deferral=1", "sum"), ("+v deferral=1", "sort"))


def test_what_this_machine_cannot_run_is_said_and_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children()
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", children)
    run = execute(tmp_path, [BASE, FUSED], {FUSED.key: "+v: no AVX-512"})
    assert {end.why for end in run.task_results if end.cell == FUSED.key} == {"+v: no AVX-512"}
    assert {where[0] for where in run.answers()} == {BASE.key}


def test_a_resumed_run_asks_what_is_open_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", Children(("+v", "sum")))
    previous = execute(tmp_path, [BASE, FUSED])
    again = Children()
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", again)
    run = execute(tmp_path, [BASE, FUSED], previous=previous)
    assert again.asked == [(("+v", "sum"), ("+v", "sort"))]
    assert len(run.answers()) == 4


def test_a_baseline_answers_again_where_its_predictions_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of tasks that compare predictions, as those of the nano model do; a file of them is enough."""
    suite = replace(SUITE, tasks=(*SUITE.tasks, TaskSpec(name="kept", source="nano/sort")))
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", Children(("+v", "sum")))
    previous = execute(tmp_path, [BASE, FUSED], suite=suite)
    again = Children()
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", again)
    reference_file(tmp_path, BASE.key, "kept").unlink()
    execute(tmp_path, [BASE, FUSED], previous=previous, suite=suite)
    assert again.asked == [(("base", "kept"), ("+v", "sum"), ("+v", "sort"), ("+v", "kept"))]
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", again := Children())
    execute(tmp_path, [BASE, FUSED], previous=read_run(tmp_path), suite=suite)
    assert again.asked == []


@pytest.mark.parametrize("again", [(), (("+v", "kept"),)], ids=["once", "killed again"])
def test_a_run_whose_baseline_was_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: tuple[tuple[str, str], ...]
) -> None:
    suite = replace(SUITE, tasks=(TaskSpec(name="kept", source="nano/sort"), *SUITE.tasks))
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", Children())
    whole = execute(tmp_path / "whole", [BASE, FUSED], suite=suite)
    run = None
    for deaths in ((("base", "kept"),), again, ()):
        monkeypatch.setattr(evaluation, "evaluate_in_subprocess", Children(*deaths))
        run = execute(tmp_path / "killed", [BASE, FUSED], previous=run, suite=suite)
    assert run is not None
    assert run.answers() == whole.answers()


def test_an_interrupt_keeps_the_tasks_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(wanted: EvalRequest, heard: Callable[[EvalProgress], None]) -> None:
        answer = SampleResult(cell=BASE.key, task="sum", question="q", value=0.0)
        heard(EvalProgress(result=ended(BASE, "sum"), samples=(answer,)))
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path, [BASE])
    assert [*read_run(tmp_path).answers()] == [(BASE.key, "sum")]


def test_a_run_that_asked_otherwise_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "evaluate_in_subprocess", Children())
    run = execute(tmp_path, [BASE])
    require_same_suite(run, SUITE)
    with pytest.raises(RequestError, match="resume: .*suite.* repeat the command it was started with: eval"):
        require_same_suite(run, None)


def test_the_baseline_of_a_part_is_what_its_cells_are_held_against() -> None:
    assert references_of([FUSED, BASE], PARTS) == {FUSED.key: BASE.key, BASE.key: BASE.key}
    assert references_of([FUSED], PARTS) == {FUSED.key: FUSED.key}


@pytest.mark.parametrize(
    ("values", "metric", "said"),
    [
        ([1.0, 0.0, 0.5, None], "score", "50.0%"),
        ([None], "score", "no answer can be graded here"),
        ([0.25, 0.75], "kl_nats", "kl_nats 0.5"),
    ],
)
def test_a_task_is_told_in_a_few_words(values: list[float | None], metric: str, said: str) -> None:
    answers = [
        SampleResult(cell="c", task="sum", question=str(n), value=v, metric=metric) for n, v in enumerate(values)
    ]
    assert result_text(ended(BASE, "sum"), answers).startswith(f"{said} (1 questions")
    assert result_text(ended(BASE, "sum", Outcome.CRASHED, "gone"), ()) == "CRASHED: gone"
