from __future__ import annotations

from collections.abc import Mapping, Sequence
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

MEASURE = MeasureSpec(max_rounds=20)


def after(rounds: Sequence[Mapping[str, float | None]], minutes: float = 0.0, **changes: float) -> Stopping:
    """The criterion after rounds with these values by cell."""
    names = dict.fromkeys(name for one in rounds for name in one)
    values = {name: {n: one[name] for n, one in enumerate(rounds) if name in one} for name in names}
    measure = replace(MEASURE, **changes)  # type: ignore[arg-type]
    return Stopping(measure=measure, values=values, rounds=len(rounds), minutes=minutes)


@pytest.mark.parametrize(
    ("noise", "minutes", "changes", "least", "most", "why"),
    [
        ({"base": 0.001, "+v": 0.002}, 0, {}, 6, 6, "goal: every interval is within ±5.0% after 6 rounds"),
        ({"base": 0.1}, 0, {"max_rounds": 200}, 7, 99, "goal"),
        ({"base": 0.001, "+v": 0.5}, 0, {}, 20, 20, "ceiling of 20 rounds: 1 of 2 intervals wider than ±5.0% (+v ±"),
        (
            {"base": 0.001},
            2.5,
            {},
            2,
            2,
            "ceiling of 5 minutes after 2 rounds: 1 of 1 intervals wider than ±5.0% (base of 2 values, 6 needed)",
        ),
        ({"base": 0.0}, 0, {"min_rounds": 1, "max_rounds": 5}, 5, 5, "ceiling of 5 rounds"),
    ],
    ids=["quiet", "closed by more rounds", "ceiling of rounds", "ceiling of time", "fewer than six rounds"],
)
def test_noise_decides_how_many_rounds_are_needed(
    noise: dict[str, float], minutes: float, changes: dict[str, float], least: int, most: int, why: str
) -> None:
    rng, rounds = np.random.default_rng(0), list[Mapping[str, float | None]]()
    while not (stopping := after(rounds, minutes * len(rounds), **changes)).finished():
        rounds.append({name: float(np.exp(rng.normal(0, width))) for name, width in noise.items()})
        assert len(rounds) < 100
    assert least <= stopping.rounds <= most
    assert stopping.why().startswith(why)


def test_the_least_rounds_are_waited_for() -> None:
    stopping = after([{"base": 1.0}] * 7, min_rounds=8)
    assert not stopping.finished()
    assert stopping.why() == "going on after 7 rounds: every interval is within ±5.0%, 8 rounds are required"
    assert after([{"base": 1.0}] * 8, min_rounds=8).finished()


def test_a_cell_that_dropped_out_is_not_waited_for() -> None:
    stopping = after([{"base": 1.0, "+v": 9.0}] + [{"base": 1.0}] * 5)
    assert stopping.finished()
    assert stopping.why().startswith("goal")


def test_a_cell_whose_rounds_do_not_count_is_waited_for() -> None:
    rounds = [{"base": 1.0, "+v": None}] * 8
    waiting = "going on after 8 rounds: 1 of 2 intervals wider than ±5.0% (+v without a value, 6 needed)"
    assert after(rounds).why() == waiting
    for number in range(6):
        assert not after(rounds).finished()
        rounds += [{"base": 1.0, "+v": 2.0}, {"base": 1.0, "+v": None}]
        assert ("of 3 values, 6 needed" in after(rounds).why()) == (number == 2)
    assert after(rounds).finished()


def test_of_many_open_cells_the_widest_are_named() -> None:
    rounds: list[Mapping[str, float | None]] = [
        {f"arm {width}": 1.0 + 0.01 * width * (-1) ** number for width in range(6, 40)} for number in range(8)
    ]
    reason = after(rounds).why()
    assert "34 of 34" in reason
    assert "arm 39 ±" in reason
    assert "arm 6 ±" not in reason
    assert len(reason) < 300


@pytest.mark.parametrize("before", [0, 3])
def test_nothing_left_ends_it(before: int) -> None:
    stopping = after([{"base": 1.0}] * before + [{}])
    assert stopping.finished()
    assert stopping.why().startswith("nothing left to measure after")


def test_nothing_is_finished_before_it_began() -> None:
    assert not after([]).finished()


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
    minutes = sum(record.took_s for record in until.records) / 60
    return Stopping(measure=measure, values=values, rounds=rounds, minutes=minutes)


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
        assert {one.cell.key for one in criterion.progress() if one.is_done} == done


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
    standing = {one.cell.key: one for one in criterion.progress()}[base.key]
    assert standing.is_done and standing.step_s is None and "killed" in standing.why
