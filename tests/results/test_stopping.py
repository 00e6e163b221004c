from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ktbench.results import Run
from ktbench.results.row import groups_of
from ktbench.results.rows import judged_values, rows_of
from ktbench.results.stopping import Stopping, SweepCriterion
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import MeasureSpec
from tests.report.peer_stores import DECODE
from tests.report.synthetic import Arm, Store


def criterion(**changes: float) -> Stopping:
    options = {"goal": 0.05, "min_rounds": 6, "max_rounds": 20, "max_minutes": 5.0} | changes
    return Stopping(**options)  # type: ignore[arg-type]


def run(stopping: Stopping, noise: dict[str, float], minutes_per_round: float = 0.0) -> Stopping:
    rng = np.random.default_rng(0)
    while not stopping.finished():
        values = {name: float(np.exp(rng.normal(0, width))) for name, width in noise.items()}
        stopping.add(values, minutes=minutes_per_round * (stopping.rounds + 1))
        assert stopping.rounds < 100
    return stopping


def test_quiet_cells_end_at_the_least_rounds() -> None:
    stopping = run(criterion(), {"base": 0.001, "+v": 0.002})
    assert stopping.rounds == 6
    assert stopping.why() == "goal: every interval is within ±5.0% after 6 rounds"


def test_more_rounds_close_what_fewer_left_open() -> None:
    stopping = run(criterion(max_rounds=200), {"base": 0.1})
    assert 6 < stopping.rounds < 100
    assert stopping.why().startswith("goal")


def test_the_ceiling_of_rounds_names_what_stayed_open() -> None:
    stopping = run(criterion(), {"base": 0.001, "+v": 0.5})
    assert stopping.rounds == 20
    assert stopping.why().startswith("ceiling of 20 rounds: 1 of 2 intervals wider than ±5.0% (+v ±")


def test_the_ceiling_of_time_holds_before_the_least_rounds() -> None:
    stopping = run(criterion(), {"base": 0.001}, minutes_per_round=2.5)
    assert stopping.rounds == 2
    assert stopping.why() == (
        "ceiling of 5 minutes after 2 rounds: 1 of 1 intervals wider than ±5.0% (base of 2 values, 6 needed)"
    )


def test_fewer_than_six_rounds_never_reach_the_goal() -> None:
    stopping = run(criterion(min_rounds=1, max_rounds=5), {"base": 0.0})
    assert stopping.rounds == 5
    assert stopping.why().startswith("ceiling of 5 rounds")


def test_the_least_rounds_are_waited_for() -> None:
    stopping = criterion(min_rounds=8)
    for _ in range(7):
        stopping.add({"base": 1.0}, minutes=0)
    assert not stopping.finished()
    assert stopping.why() == "going on after 7 rounds: every interval is within ±5.0%, 8 rounds are required"
    stopping.add({"base": 1.0}, minutes=0)
    assert stopping.finished()


def test_a_cell_that_dropped_out_is_not_waited_for() -> None:
    stopping = criterion()
    stopping.add({"base": 1.0, "+v": 9.0}, minutes=0)
    for _ in range(5):
        stopping.add({"base": 1.0}, minutes=0)
    assert stopping.finished()
    assert stopping.why().startswith("goal")


def test_a_cell_whose_rounds_do_not_count_is_waited_for() -> None:
    stopping = criterion()
    for _ in range(8):
        stopping.add({"base": 1.0, "+v": None}, minutes=0)
    assert stopping.why() == "going on after 8 rounds: 1 of 2 intervals wider than ±5.0% (+v without a value, 6 needed)"
    for number in range(6):
        assert not stopping.finished()
        stopping.add({"base": 1.0, "+v": 2.0}, minutes=0)
        stopping.add({"base": 1.0, "+v": None}, minutes=0)
        assert ("of 3 values, 6 needed" in stopping.why()) == (number == 2)
    assert stopping.finished()


@pytest.mark.parametrize("before", [0, 3])
def test_nothing_left_ends_it(before: int) -> None:
    stopping = criterion()
    for _ in range(before):
        stopping.add({"base": 1.0}, minutes=0)
    stopping.add({}, minutes=0)
    assert stopping.finished()
    assert stopping.why().startswith("nothing left to measure after")


def test_nothing_is_finished_before_it_began() -> None:
    assert not criterion().finished()


ARMS = (
    Arm(label="base", noise=0.001),
    Arm(label="+v", step_ms=50.0, noise=0.2),
    Arm(label="+m", outcome=Outcome.UNSUPPORTED, why="this processor has no AMX"),
)


def of_rows(run: Run, measure: MeasureSpec, rounds: int) -> Stopping:
    """The criterion over the rows that the log gives after so many rounds."""
    until = replace(run, records=tuple(record for record in run.records if record.round < rounds))
    values = {
        row.cell: judged_values(row, group) for group in groups_of(rows_of(until)) for row in group if row.records
    }
    goal = Stopping(
        goal=measure.goal,
        min_rounds=measure.min_rounds,
        max_rounds=measure.max_rounds,
        max_minutes=measure.max_minutes,
    )
    minutes = sum(record.took_s for record in until.records) / 60
    for number in range(rounds):
        goal.add({name: found[number] for name, found in values.items() if number in found}, minutes)
    return goal


def criterion_of(run: Run, measure: MeasureSpec) -> SweepCriterion:
    return SweepCriterion(run.header.cells, run.header.parts, measure, {})


@pytest.mark.parametrize("store", [Store(arms=ARMS, rounds=8, drift=0.0), DECODE], ids=["one point", "peers"])
def test_a_criterion_fed_by_rounds_is_that_of_the_rows(store: Store, tmp_path: Path) -> None:
    run, measure = store.write(tmp_path), MeasureSpec()
    criterion = criterion_of(run, measure)
    for number in range(store.rounds):
        criterion.add(record for record in run.records if record.round == number)
        expected = of_rows(run, measure, number + 1)
        assert (criterion.finished(), criterion.why()) == (expected.finished(), expected.why())
        rows = rows_of(replace(run, records=tuple(one for one in run.records if one.round <= number)))
        done = {row.cell for row in rows if row.outcome not in (None, Outcome.NOISY)}
        assert {one.cell.key for one in criterion.standings() if one.is_done} == done


def test_a_baseline_that_fails_late_leaves_seconds_to_judge(tmp_path: Path) -> None:
    run, measure = Store(arms=ARMS[:2], rounds=8, drift=0.0).write(tmp_path), MeasureSpec()
    base = next(cell for cell in run.header.cells if cell.label == "base" and cell.role == "arm")
    records = tuple(
        replace(one, outcome=Outcome.CRASHED, samples_s=(), why="killed")
        if one.cell == base.key and one.round == 7
        else one
        for one in run.records
    )
    run, criterion = replace(run, records=records), criterion_of(run, measure)
    for number in range(8):
        criterion.add(record for record in records if record.round == number)
    assert criterion.why() == of_rows(run, measure, 8).why()
    standing = {one.cell.key: one for one in criterion.standings()}[base.key]
    assert standing.is_done and standing.step_s is None and "killed" in standing.why
