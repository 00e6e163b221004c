"""Makespans against every task dealt in turn."""

from __future__ import annotations

import resource
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim import cores
from ktbench.sim.cores import compiled, dynamic_s, makespan_s, static_s

EXPERTS = st.lists(st.integers(0, 50), max_size=12).map(lambda seconds: np.array(seconds, dtype=np.float64))
TASKS = st.integers(1, 9)
THREADS = st.integers(1, 20)


def each_task(expert_s: NDArray[np.float64], tasks: int) -> list[float]:
    return [seconds / tasks for seconds in expert_s.tolist() for _ in range(tasks)]


def queued_s(task_s: list[float], threads: int) -> float:
    """Whoever is free first takes the next."""
    free = [0.0] * threads
    for seconds in task_s:
        free[free.index(min(free))] += seconds
    return max(free)


def shared_s(task_s: list[float], threads: int) -> float:
    """Contiguous shares, equal in number give or take one."""
    ends = [len(task_s) * thread // threads for thread in range(threads + 1)]
    return max(sum(task_s[ends[thread] : ends[thread + 1]]) for thread in range(threads))


@given(EXPERTS, TASKS, THREADS)
def test_a_queue_serves_whoever_is_free_first(expert_s: NDArray[np.float64], tasks: int, threads: int) -> None:
    assert dynamic_s(expert_s, tasks, threads) == pytest.approx(queued_s(each_task(expert_s, tasks), threads))


@given(EXPERTS, TASKS, THREADS)
def test_shares_are_contiguous_and_equal_in_number(expert_s: NDArray[np.float64], tasks: int, threads: int) -> None:
    assert static_s(expert_s, tasks, threads) == pytest.approx(shared_s(each_task(expert_s, tasks), threads))


@given(st.integers(0, 12), st.floats(0.01, 100), TASKS, THREADS)
def test_where_experts_are_alike_both_take_the_same(experts: int, seconds: float, tasks: int, threads: int) -> None:
    expert_s = np.full(experts, seconds)
    rounds = ceil(experts * tasks / threads)
    assert static_s(expert_s, tasks, threads) == pytest.approx(rounds * seconds / tasks)
    assert dynamic_s(expert_s, tasks, threads) == pytest.approx(rounds * seconds / tasks)


def test_static_shares_depend_on_the_order_of_experts() -> None:
    together, apart = np.array([9.0, 9.0, 1.0, 1.0]), np.array([9.0, 1.0, 9.0, 1.0])
    assert static_s(together, 4, 2) == 18.0
    assert static_s(apart, 4, 2) == 10.0
    assert dynamic_s(together, 4, 2) == dynamic_s(apart, 4, 2) == 10.0


def test_compiled_queues_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expert_s = np.random.default_rng(0).random(64)
    plain = dynamic_s(expert_s, 31, 7)
    assert makespan_s(expert_s, 31, 7, dynamic=True) == plain
    monkeypatch.setattr(cores, "_COMPILED_FROM", 0)
    monkeypatch.setenv("KTBENCH_CACHE", str(tmp_path))
    compiled.cache_clear()
    assert makespan_s(expert_s, 31, 7, dynamic=True) == plain
    assert any((tmp_path / "numba").rglob("*.nbi"))


def test_a_cache_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the place of a folder")
    monkeypatch.setenv("KTBENCH_CACHE", str(tmp_path / "file"))
    compiled.cache_clear()
    expert_s = np.random.default_rng(0).random(8)
    assert compiled(dynamic_s)(expert_s, 3, 2) == dynamic_s(expert_s, 3, 2)
    compiled.cache_clear()


def test_a_full_disk_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KTBENCH_CACHE", str(tmp_path))
    compiled.cache_clear()
    expert_s = np.random.default_rng(0).random(8)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        assert compiled(dynamic_s)(expert_s, 3, 2) == dynamic_s(expert_s, 3, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        compiled.cache_clear()
