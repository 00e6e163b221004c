"""Warm-up ends when it may."""

from __future__ import annotations

from ktbench.run.session import warm_up


def test_until_page_faults_stop() -> None:
    faults = iter([0, 500, 500, 600, 600, 603])
    assert warm_up(lambda: None, lambda: next(faults), lambda: 0.0) == 3


def test_at_most_a_few_times() -> None:
    faults = iter(range(0, 10_000, 100))
    turns: list[None] = []
    assert warm_up(lambda: turns.append(None), lambda: next(faults), lambda: 0.0) == len(turns) == 8


def test_a_turn_of_seconds_is_enough() -> None:
    faults, clock = iter(range(0, 10_000, 100)), iter([10.0, 13.0])
    assert warm_up(lambda: None, lambda: next(faults), lambda: next(clock)) == 1
