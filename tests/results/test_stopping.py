from __future__ import annotations

import numpy as np
import pytest

from ktbench.results.stopping import Stopping


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
    assert stopping.why() == "going on after 7 rounds: every interval is within ±5.0%, 8 rounds were asked for"
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
