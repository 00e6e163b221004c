"""Comparison of two runs: which trials are compared, what is reported of them, what remains in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktbench.report.comparison_table import comparison_markdown, write_comparison
from ktbench.report.figures.draw import draw_change
from ktbench.results import Run
from ktbench.results.between_runs import require_one_machine, rounds_in_turns
from ktbench.results.comparison import ComparedCell, Comparison, compare_runs
from ktbench.results.speedups import Verdict
from ktbench.spec.errors import RequestError
from ktbench.spec.record import Outcome
from tests.report.accuracy_stores import FOUR, Answering, AnswerStore
from tests.report.comparison_runs import ARMS, HOUR_S, doubtful, kept, on_machine, run_of, with_roofs
from tests.report.layers import LayerArm, LayerPart, LayerStore
from tests.report.simulated_runs import simulated
from tests.report.synthetic import Arm

SLOWED = (ARMS[0], replace(ARMS[1], step_ms=61.0 * 1.25), replace(ARMS[2], step_ms=60.0 / 1.5))


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {cell.name: cell.verdict for cell in comparison.cells}


def cell_of(comparison: Comparison, name: str) -> ComparedCell:
    return next(cell for cell in comparison.cells if cell.name == name)


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """One run, and an hour later another with +v slower, +v+d faster and the rest as it was."""
    folder = tmp_path_factory.mktemp("slowed")
    return compare_runs(run_of(folder, "before"), run_of(folder, "after", arms=SLOWED, begun_s=HOUR_S))


def test_a_run_against_itself_is_the_same_whatever_its_noise(tmp_path: Path) -> None:
    run = run_of(tmp_path, "noisy", arms=tuple(replace(arm, noise=0.4) for arm in ARMS), rounds=3)
    comparison = compare_runs(run, run)
    assert verdicts(comparison) == dict.fromkeys(("base", "+v", "+v+d", "base (A/A)"), Verdict.SAME)
    assert not comparison.is_worse
    assert "the very same trials" in comparison_markdown(comparison)


def test_what_is_slower_faster_and_the_same_is_found(slowed: Comparison) -> None:
    expected = {"base": Verdict.SAME, "+v": Verdict.SLOWER, "+v+d": Verdict.FASTER, "base (A/A)": Verdict.SAME}
    assert verdicts(slowed) == expected
    held = cell_of(slowed, "+v").held
    assert held is not None and held.speedup is not None
    assert held.speedup.low < 1 / 1.25 < held.speedup.high
    assert (held.method, held.trials) == ("unpaired", (12, 12))
    assert slowed.is_worse


def test_exchanging_the_runs_exchanges_the_verdicts(slowed: Comparison) -> None:
    back = compare_runs(slowed.after, slowed.before)
    assert verdicts(back)["+v"] is Verdict.FASTER
    assert verdicts(back)["+v+d"] is Verdict.SLOWER


def test_a_change_within_the_tolerance_is_none(slowed: Comparison) -> None:
    loose = compare_runs(slowed.before, slowed.after, tolerance=0.6)
    assert set(verdicts(loose).values()) == {Verdict.SAME}
    assert not loose.is_worse


def test_rounds_measured_in_turns_are_pairs(tmp_path: Path) -> None:
    """A drift of 5 % a round would hide a change of 10 % from anything that does not pair rounds."""
    drifting = {"rounds": 8, "every_s": 100.0}
    before = _drifting(run_of(tmp_path, "a", **drifting))
    arms = tuple(replace(arm, step_ms=1.1 * arm.step_ms) for arm in ARMS)
    after = _drifting(run_of(tmp_path, "b", arms=arms, begun_s=50.0, **drifting))
    comparison = compare_runs(before, after)
    assert comparison.in_turns
    assert set(verdicts(comparison).values()) == {Verdict.SLOWER}
    assert {cell.held.method for cell in comparison.cells if cell.held} == {"paired"}
    later = compare_runs(before, _drifting(run_of(tmp_path, "c", arms=arms, begun_s=HOUR_S, **drifting)))
    assert not later.in_turns
    assert set(verdicts(later).values()) == {Verdict.UNSURE}


def _drifting(run: Run) -> Run:
    """Every round 5 % slower than the one before."""
    records = [replace(r, samples_s=tuple(s * 1.05**r.round for s in r.samples_s)) for r in run.records]
    return kept(replace(run, records=tuple(records)))


@pytest.mark.parametrize(
    ("begun_s", "every_s", "expected"),
    [(50.0, 100.0, True), (-50.0, 100.0, True), (0.0, 100.0, False), (150.0, 100.0, False), (HOUR_S, 10.0, False)],
)
def test_in_turns_is_what_the_clock_says(tmp_path: Path, begun_s: float, every_s: float, expected: bool) -> None:
    one = run_of(tmp_path, "one", rounds=4, every_s=100.0)
    other = run_of(tmp_path, "other", rounds=4, every_s=every_s, begun_s=begun_s)
    assert bool(rounds_in_turns(one, other)) is expected
    assert bool(rounds_in_turns(other, one)) is expected


def test_walking_back_is_in_turns_as_well(tmp_path: Path) -> None:
    """A B, B A, A B: B is 10 s behind A in even rounds and 10 s ahead of it in odd ones."""
    one = run_of(tmp_path, "one", rounds=4, every_s=100.0)
    other = run_of(tmp_path, "other", rounds=4, every_s=100.0, begun_s=10.0)
    shifted = run_of(tmp_path, "shifted", rounds=4, every_s=100.0, begun_s=-10.0)
    records = [r if r.round % 2 == 0 else s for r, s in zip(other.records, shifted.records, strict=True)]
    assert rounds_in_turns(one, replace(other, records=tuple(records)))


def test_too_few_turns_are_unsure_and_say_so(tmp_path: Path) -> None:
    before = run_of(tmp_path, "before", rounds=3)
    comparison = compare_runs(before, run_of(tmp_path, "after", arms=SLOWED, begun_s=HOUR_S, rounds=3))
    assert set(verdicts(comparison).values()) == {Verdict.UNSURE}
    assert "too few trials for an interval of 95%, four in each run are enough" in cell_of(comparison, "+v").why


def test_only_turns_with_the_cores_in_the_same_place_are_compared(tmp_path: Path) -> None:
    near = run_of(tmp_path, "near", ping_pong_ns=(60.0,))
    mixed = run_of(tmp_path, "mixed", ping_pong_ns=(60.0, 155.0, 155.0), begun_s=HOUR_S)
    far = run_of(tmp_path, "far", ping_pong_ns=(155.0,), begun_s=2 * HOUR_S)
    held = cell_of(compare_runs(near, mixed), "+v").held
    assert held is not None and held.trials == (12, 4)
    nothing = cell_of(compare_runs(near, far), "+v")
    assert nothing.held is not None and nothing.held.speedup is None
    assert (nothing.verdict, nothing.why) == (Verdict.UNSURE, "in no trial had both runs the cores in the same place")


def test_cells_that_did_not_end_well_keep_their_reason(tmp_path: Path) -> None:
    wrong = Arm(label="+v", outcome=Outcome.WRONG, why="output differs from float32")
    before = run_of(tmp_path, "before")
    comparison = compare_runs(before, run_of(tmp_path, "after", arms=(ARMS[0], wrong, ARMS[2]), begun_s=HOUR_S))
    found = cell_of(comparison, "+v")
    assert (found.held, found.verdict, found.why) == (None, Verdict.UNSURE, "in B WRONG: output differs from float32")
    both = compare_runs(comparison.after, comparison.after)
    assert cell_of(both, "+v").why == "in both WRONG: output differs from float32"


def _line(comparison: Comparison, name: str) -> Sequence[str]:
    rows = [line.strip("|").split("|") for line in comparison_markdown(comparison).splitlines() if line.startswith("|")]
    return next([text.strip() for text in row] for row in rows if row[0].strip() == name)


def test_cells_of_one_run_alone_are_listed(tmp_path: Path) -> None:
    before = run_of(tmp_path, "before", arms=ARMS[:2])
    after = run_of(tmp_path, "after", arms=(ARMS[0], ARMS[2]), begun_s=HOUR_S)
    comparison = compare_runs(before, after)
    assert (comparison.only_before, comparison.only_after) == (("+v",), ("+v+d",))


def test_a_part_of_a_sweep_is_joined_with_the_sweep_alone(tmp_path: Path) -> None:
    alone = run_of(tmp_path, "alone")
    other = run_of(tmp_path, "suite", begun_s=HOUR_S)
    cells = {cell.key: replace(cell, part="fig14") for cell in other.header.cells}
    header = replace(
        other.header,
        parts=tuple(replace(part, name="fig14") for part in other.header.parts),
        cells=tuple(cells.values()),
    )
    records = tuple(replace(record, cell=cells[record.cell].key) for record in other.records)
    comparison = compare_runs(alone, replace(other, header=header, records=records))
    assert len(comparison.cells) == 4
    assert not comparison.only_before and not comparison.only_after


def test_a_machine_that_changed_as_much_is_said(tmp_path: Path) -> None:
    before = run_of(tmp_path, "before")
    arms = tuple(replace(arm, step_ms=2 * arm.step_ms) for arm in ARMS)
    after = with_roofs(run_of(tmp_path, "after", arms=arms, begun_s=HOUR_S), 0.5)
    comparison = compare_runs(before, after)
    found = cell_of(comparison, "+v")
    assert found.verdict is Verdict.SLOWER and found.machine_too
    assert found.roof is not None and found.roof.ratio == pytest.approx(0.5)
    steady = compare_runs(before, run_of(tmp_path, "steady", arms=arms, begun_s=HOUR_S))
    assert not cell_of(steady, "+v").machine_too
    assert "The machine itself" not in comparison_markdown(steady)


def test_what_equal_cells_differ_by_widens_what_counts_as_a_change(tmp_path: Path) -> None:
    """The control of B is 30 % off its baseline: 25 % are then no finding, where they were one without it."""
    before = run_of(tmp_path, "before")
    after = run_of(tmp_path, "after", arms=SLOWED, begun_s=HOUR_S)
    control = next(cell.key for cell in after.header.cells if cell.role == "control")
    records = [
        replace(r, samples_s=tuple(1.4 * s for s in r.samples_s)) if r.cell == control else r for r in after.records
    ]
    comparison = compare_runs(before, replace(after, records=tuple(records)))
    assert verdicts(comparison)["+v"] is Verdict.UNSURE
    assert any("distrust" in line for line in comparison_markdown(comparison).splitlines() if line.startswith("- In B"))


def test_the_same_code_is_said(slowed: Comparison, tmp_path: Path) -> None:
    assert "A and B ran the same code (38e7737d2451)" in comparison_markdown(slowed)
    assert "the same code" not in comparison_markdown(doubtful(tmp_path))


def test_simulated_cells_are_compared_as_they_are(tmp_path: Path) -> None:
    before = simulated(run_of(tmp_path, "before"))
    records = [replace(r, samples_s=tuple(1.5 * s for s in r.samples_s)) for r in before.records]
    after = replace(before, records=tuple(records), folder=tmp_path / "after")
    comparison = compare_runs(before, after)
    held = cell_of(comparison, "+v").held
    assert held is not None and held.speedup is not None
    assert (held.method, held.speedup.mid) == ("simulated", pytest.approx(1 / 1.5))
    assert comparison.is_worse
    line = _line(comparison, "+v")
    assert line[3] == "0.667" and line[-1] == "simulated"


def test_a_turn_taken_again_costs_its_round_and_what_it_spans(tmp_path: Path) -> None:
    before = run_of(tmp_path, "a", every_s=100.0)
    after = run_of(tmp_path, "b", arms=SLOWED, every_s=100.0, begun_s=50.0)
    key, late = after.records[0].cell, next(r.started for r in after.records if r.round == 5)
    again = tuple(replace(r, started=late) if (r.cell, r.round) == (key, 4) else r for r in after.records)
    whole = rounds_in_turns(before, after)
    assert rounds_in_turns(before, kept(replace(after, records=again))) == whole - {4, 5}
    held = cell_of(compare_runs(before, kept(replace(after, records=again))), "+v").held
    assert held is not None and (held.method, held.trials) == ("paired", (len(whole) - 2,) * 2)


def test_runs_of_different_machines_are_refused_by_name(tmp_path: Path) -> None:
    here = run_of(tmp_path, "here")
    there = on_machine(run_of(tmp_path, "there", begun_s=HOUR_S), "0123456789ab", "AMD EPYC")
    with pytest.raises(RequestError, match=r"here \(Intel.*3e35237a811c\) and there \(AMD EPYC, 0123456789ab\)"):
        require_one_machine(here, there)
    require_one_machine(here, here)
    require_one_machine(here, simulated(there))
    assert "A and B are of different machines" in comparison_markdown(compare_runs(here, there))


def planned_on(run: Run, env_id: str) -> Run:
    """The run as planned by a machine that measured nothing of it."""
    return kept(replace(run, header=replace(run.header, env_id=env_id)))


def timed_on(run: Run, machines: dict[str, str]) -> Run:
    """The run with the turns of the cells named on another machine each."""
    cells = {cell.key: cell.label for cell in run.header.cells}
    records = [replace(r, env_id=machines.get(cells[r.cell], r.env_id)) for r in run.records]
    return kept(replace(run, records=tuple(records)))


def test_rounds_on_two_machines_are_not_in_turns_and_no_ratio(tmp_path: Path) -> None:
    """One login node planned both, and both measured at the same time, each on a node of its own."""
    before, after = (
        planned_on(on_machine(run_of(tmp_path, name, every_s=100.0, begun_s=at, arms=arms), node, "AMD EPYC"), "login")
        for name, node, at, arms in (("a", "nodeA", 0.0, ARMS), ("b", "nodeB", 50.0, SLOWED))
    )
    with pytest.raises(RequestError, match=r"a \(AMD EPYC, nodeA\) and b \(AMD EPYC, nodeB\)"):
        require_one_machine(before, after)
    comparison = compare_runs(before, after)
    assert rounds_in_turns(before, after) and not comparison.in_turns
    assert set(verdicts(comparison).values()) == {Verdict.UNSURE} and not comparison.is_worse
    assert {cell.held.speedup for cell in comparison.cells if cell.held} == {None}
    assert {cell.roof for cell in comparison.cells} == {None}
    text = comparison_markdown(comparison)
    assert "A and B are of different machines" in text
    assert "different machines timed it, nodeA in A and nodeB in B: that is no ratio" in text
    assert "one after the other" not in text and "The machine itself" not in text
    meant = compare_runs(before, after, different_machines=True)
    slower = cell_of(meant, "+v")
    assert slower.verdict is Verdict.SLOWER and slower.held is not None and slower.held.method == "unpaired"
    assert slower.why == "different machines timed it, nodeA in A and nodeB in B"
    assert slower.why in comparison_markdown(meant) and slower.roof is None


def test_who_planned_a_run_is_not_asked(tmp_path: Path) -> None:
    before = planned_on(run_of(tmp_path, "a", rounds=8, every_s=100.0), "login1")
    after = planned_on(run_of(tmp_path, "b", rounds=8, every_s=100.0, begun_s=50.0), "login2")
    require_one_machine(before, after)
    comparison = compare_runs(before, after)
    assert comparison.in_turns
    text = comparison_markdown(comparison)
    assert "of different machines" not in text and text.count("Machine: Intel") == 1
    paper = compare_runs(simulated(before), simulated(after))
    assert "of different machines" not in comparison_markdown(paper)
    assert {cell.held.method for cell in paper.cells if cell.held} == {"simulated"}


@pytest.mark.parametrize("every_s", [100.0, 5.0])
def test_cells_that_changed_machines_have_no_verdict(tmp_path: Path, every_s: float) -> None:
    """The same two machines in both runs, but +v+d was timed on the other one."""
    before = timed_on(run_of(tmp_path, "a", every_s=100.0), {"+v+d": "node2", "+v": "node2"})
    slow = tuple(replace(arm, step_ms=2 * arm.step_ms) for arm in ARMS)
    after = timed_on(run_of(tmp_path, "b", arms=slow, every_s=every_s, begun_s=50.0), {"+v": "node2"})
    require_one_machine(before, after)
    comparison = compare_runs(before, after)
    assert comparison.in_turns == (every_s == 100.0)
    found = cell_of(comparison, "+v+d")
    assert found.verdict is Verdict.UNSURE and found.held is not None and found.held.speedup is None
    assert found.why == "different machines timed it, node2 in A and 3e35237a811c in B: that is no ratio"
    assert (verdicts(comparison)["+v"], verdicts(comparison)["base"]) == (Verdict.SLOWER, Verdict.SLOWER)
    assert found.why in comparison_markdown(comparison)


@pytest.mark.parametrize(("every_s", "method", "turns"), [(100.0, "paired", (10, 10)), (5.0, "unpaired", (8, 10))])
def test_only_turns_of_one_machine_are_compared(
    tmp_path: Path, every_s: float, method: str, turns: tuple[int, int]
) -> None:
    """Of twelve rounds A had four and B two of the same ones elsewhere, with the cores in the same place."""
    before, after = (
        kept(replace(run, records=tuple(replace(r, env_id="node2") if r.round in moved else r for r in run.records)))
        for run, moved in (
            (run_of(tmp_path, "a", every_s=100.0), {0, 1, 2, 3}),
            (run_of(tmp_path, "b", every_s=every_s, begun_s=50.0), {2, 3}),
        )
    )
    held = cell_of(compare_runs(before, after), "+v").held
    assert held is not None and (held.method, held.trials) == (method, turns)


def test_answers_are_compared_question_by_question(tmp_path: Path) -> None:
    arms = (Answering(label="+v+d"), Answering(label="+v+d deferral=2"))
    store = AnswerStore(arms=arms, suite=FOUR, run="before")
    before = store.write(tmp_path)
    worse = replace(store, run="after", arms=(arms[0], replace(arms[1], loses=0.3))).write(tmp_path)
    comparison = compare_runs(before, worse)
    averages = {one.name: one for one in comparison.answers if one.kind == "average"}
    kept_up, lost = averages["+v+d"].change, averages["+v+d deferral=2"].change
    assert kept_up is not None and lost is not None
    assert (kept_up.flips.lost, kept_up.flips.gained, str(kept_up.verdict)) == (0, 0, "no difference shown")
    assert lost.flips.lost > 20 and str(lost.verdict) == "lower"
    assert comparison.is_worse and not compare_runs(before, before).is_worse
    assert len(comparison.answers) == 2 * (1 + len(FOUR.tasks))
    assert "lower" in comparison_markdown(comparison)


def test_answers_to_other_questions_are_not_compared(tmp_path: Path) -> None:
    store = AnswerStore(arms=(Answering(label="+v+d"),), suite=FOUR, run="before", questions=5)
    shots = replace(FOUR, tasks=(replace(FOUR.tasks[0], shots=5), *FOUR.tasks[1:]))
    comparison = compare_runs(store.write(tmp_path), replace(store, run="after", suite=shots).write(tmp_path))
    found = {one.subject: one for one in comparison.answers}
    assert found["coding_1"].change is None and found["average"].change is None
    assert found["coding_1"].why == "coding_1 is set otherwise in the second run"
    assert found["coding_2"].change is not None


def test_questions_made_from_another_seed_are_not_compared(tmp_path: Path) -> None:
    """The nano suite names them by level and number; those of a file are the same whatever is drawn."""
    written = replace(FOUR.tasks[3], source="gsm8k_cot")
    store = AnswerStore(
        arms=(Answering(label="+v+d"),),
        suite=replace(FOUR, tasks=(*FOUR.tasks[:3], written)),
        run="before",
        questions=5,
    )
    other = replace(store, run="after", suite=replace(store.suite, seed=1))
    found = {one.subject: one for one in compare_runs(store.write(tmp_path), other.write(tmp_path)).answers}
    assert found["coding_1"].change is None and "(seed)" in found["coding_1"].why
    assert found["average"].change is None
    assert found[written.name].change is not None


def test_answers_after_other_worked_examples_are_not_compared(tmp_path: Path) -> None:
    """lm-eval draws them in the order of questions: another limit changes those of all questions."""
    suite = replace(FOUR, tasks=(replace(FOUR.tasks[0], shots=5), *FOUR.tasks[1:]))
    store = AnswerStore(arms=(Answering(label="+v+d"),), suite=suite, run="before", questions=5)
    limited = replace(store, run="after", suite=replace(suite, limit=5))
    found = {one.subject: one for one in compare_runs(store.write(tmp_path), limited.write(tmp_path)).answers}
    assert found["coding_1"].change is None and "worked examples" in found["coding_1"].why
    assert found["coding_2"].change is not None


def test_curves_of_throughput_are_drawn_with_those_of_the_other_run(tmp_path: Path) -> None:
    def run(name: str, share: float) -> Run:
        part = LayerPart(arms=(LayerArm(label="+v+d", share=share),), tokens=(1, 4, 16), control=False)
        return LayerStore(parts=(part,), rounds=6).write(tmp_path / name)

    comparison = compare_runs(run("a", 0.5), run("b", 0.9))
    assert {path.suffix for path in write_comparison(comparison)} == {".md", ".csv", ".json", ".pdf", ".svg", ".png"}
    (axes,) = draw_change(comparison.before_rows, comparison.after_rows, []).axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_linestyle() == "-"]
    speeds = sorted(list(line.get_ydata()) for line in curves)
    assert [b / a for a, b in zip(*speeds, strict=True)] == pytest.approx([9 / 5] * 3, rel=0.02)
