"""Tuning on a clock that only moves when something is tried, and the settings that llama.cpp is tuned in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.peers.llama.settings import LlamaSettings, first_settings, walks
from ktbench.peers.tuning import ThreadCount, Tuned, Tuner, thread_counts, vary


class ScriptedBench:
    """Settings have a price by which the clock advances; the first step with each costs `cold` times as much."""

    def __init__(self, step_s: Callable[[Any], float], prepare_s: float = 0.0, cold: float = 1.0) -> None:
        self.price_s, self.prepare_s, self.cold = step_s, prepare_s, cold
        self.now_s = 0.0
        self.open: set[Any] = set()
        self.most_open = 0
        self.steps: list[Any] = []

    def prepare(self, settings: Any) -> None:
        if settings.context not in self.open:
            self.now_s += self.prepare_s
            self.open.add(settings.context)
            self.most_open = max(self.most_open, len(self.open))
        self.settings, self.is_cold = settings, True

    def step(self) -> None:
        self.now_s += self.price_s(self.settings) * (self.cold if self.is_cold else 1)
        self.is_cold = False
        self.steps.append(self.settings)

    def keep(self, settings: Any) -> None:
        self.open &= {settings.context}

    def tune(self, cores: int, tokens: int, budget_s: float) -> Tuned[LlamaSettings]:
        tuner = Tuner(self, budget_s, lambda: self.now_s)
        return tuner.tune(first_settings(cores, tokens), walks(cores, tokens))

    def tune_threads(self, counts: tuple[int, ...], budget_s: float) -> Tuned[ThreadCount]:
        walk = vary("threads", counts[1:])
        return Tuner(self, budget_s, lambda: self.now_s).tune(ThreadCount(threads=counts[0]), [walk])

    @property
    def tried(self) -> list[Any]:
        return list(dict.fromkeys(self.steps))


def flat(_settings: LlamaSettings) -> float:
    return 0.125  # adds up exactly


def test_order_is_fixed_and_begins_with_all_cores() -> None:
    bench = ScriptedBench(flat)
    tuned = bench.tune(cores=8, tokens=2048, budget_s=1000)
    base = LlamaSettings(threads=8)
    assert bench.tried == [
        base,
        LlamaSettings(threads=8, ubatch=1024),
        LlamaSettings(threads=8, ubatch=2048),
        LlamaSettings(threads=8, ubatch=256),
        LlamaSettings(threads=8, ubatch=128),
        LlamaSettings(threads=8, ubatch=64),
        LlamaSettings(threads=8, flash=False),
        *(LlamaSettings(threads=count) for count in (6, 4, 3, 2, 1)),
    ]
    assert tuned.settings == base  # of equals the first
    assert [trial.settings for trial in tuned.trials] == bench.tried


def test_finds_the_best_of_every_kind_together() -> None:
    best = LlamaSettings(threads=4, ubatch=1024, flash=False)

    def price_s(settings: LlamaSettings) -> float:
        wrong = (settings.threads != best.threads) + (settings.ubatch != best.ubatch) + (settings.flash != best.flash)
        return 0.1 * 1.5**wrong * (8 / settings.threads if settings.threads < 4 else 1)

    bench = ScriptedBench(price_s, prepare_s=0.5)
    assert bench.tune(cores=6, tokens=4096, budget_s=1000).settings == best
    assert bench.settings == best  # and left ready to run on it
    assert bench.open == {best.context}
    assert bench.most_open == 2


def test_a_way_that_makes_it_slower_is_left() -> None:
    bench = ScriptedBench(lambda settings: 1.0 / settings.threads)
    bench.tune(cores=32, tokens=1, budget_s=1000)
    assert [s.threads for s in bench.tried] == [32, 32, 24]


def test_decode_leaves_ubatch_alone() -> None:
    bench = ScriptedBench(flat)
    bench.tune(cores=2, tokens=3, budget_s=1000)
    first = LlamaSettings(threads=2, ubatch=64)
    assert bench.tried == [first, replace(first, flash=False), replace(first, threads=1)]


@given(
    cores=st.integers(1, 64),
    tokens=st.integers(1, 8192),
    budget_s=st.floats(0.01, 200, allow_subnormal=False),
    step_s=st.floats(0.001, 60, allow_subnormal=False),
    prepare_s=st.floats(0, 100, allow_subnormal=False),
)
def test_budget_holds_whatever_comes_first(
    cores: int, tokens: int, budget_s: float, step_s: float, prepare_s: float
) -> None:
    """Where threads scale, what a try takes is what it was expected to."""
    bench = ScriptedBench(lambda settings: step_s / settings.threads, prepare_s)
    tuned = bench.tune(cores, tokens, budget_s)
    assert tuned.trials[0].settings == first_settings(cores, tokens)
    assert tuned.took_s <= max(budget_s, step_s / cores) * (1 + 1e-9)
    assert tuned.settings in [trial.settings for trial in tuned.trials]


def test_a_first_step_beyond_the_budget_is_the_only_one() -> None:
    bench = ScriptedBench(lambda settings: 30.0)
    tuned = bench.tune(cores=4, tokens=512, budget_s=20)
    assert len(bench.steps) == 1
    assert tuned.trials[0].step_s == 30.0


def test_the_first_prompt_is_not_counted() -> None:
    bench = ScriptedBench(flat, prepare_s=50)
    tuned = bench.tune(cores=2, tokens=1, budget_s=20)
    assert [s.flash for s in bench.tried] == [True, True]  # another context would take too long, other threads do not
    assert tuned.took_s < 20


@pytest.mark.parametrize(("budget_s", "counts"), [(0, (2, 1)), (9, (1,))], ids=["no budget", "no choice"])
def test_without_a_budget_or_a_choice_nothing_is_tried(budget_s: float, counts: tuple[int, ...]) -> None:
    bench = ScriptedBench(flat)
    tuned = bench.tune_threads(counts, budget_s)
    assert not bench.steps
    assert bench.settings == tuned.settings == ThreadCount(threads=counts[0])
    assert tuned.explain("peer 1").startswith("peer 1 not tuned")
    assert tuned.explain("peer 1").endswith(str(tuned.settings))


def test_the_choice_is_explained_with_units() -> None:
    bench = ScriptedBench(lambda settings: 0.25 if settings.flash else 0.5)
    text = bench.tune(cores=1, tokens=1, budget_s=100).explain("llama.cpp 1")
    assert text == (
        "llama.cpp 1 tuned in 3.0 s over 2 settings: threads 1, ubatch 64, flash attention on "
        "(250 ms a step; slowest 500 ms with threads 1, ubatch 64, flash attention off)"
    )


def test_the_warm_up_is_not_counted() -> None:
    bench = ScriptedBench(lambda s: {4: 0.3, 2: 0.25, 1: 0.3125}[s.threads], cold=2)
    tuned = bench.tune_threads((4, 2, 1), 100)
    assert bench.settings.threads == tuned.settings.threads == 2
    assert {trial.settings.threads: trial.step_s for trial in tuned.trials} == pytest.approx(
        {4: 0.3, 2: 0.25, 1: 0.3125}
    )


@pytest.mark.parametrize(
    ("budget_s", "medians_s", "steps"),
    [(7, {2: 8.0}, 1), (13, {2: 8.0}, 1), (17, {2: 4.0}, 3), (27, {2: 4.0}, 4), (90, {2: 4.0, 1: 5.0}, 8)],
)
def test_a_step_that_would_not_fit_is_not_begun(budget_s: float, medians_s: dict[int, float], steps: int) -> None:
    bench = ScriptedBench(lambda settings: {2: 4.0, 1: 5.0}[settings.threads], cold=2)
    tuned = bench.tune_threads((2, 1), budget_s)
    assert tuned.settings.threads == 2
    assert {trial.settings.threads: trial.step_s for trial in tuned.trials} == medians_s
    assert len(bench.steps) == steps
    assert tuned.took_s == bench.now_s <= max(budget_s, 8)


@given(st.integers(1, 300))
def test_thread_counts_go_down_from_all_cores_to_one(most: int) -> None:
    counts = thread_counts(most)
    assert (counts[0], counts[-1]) == (most, 1)
    assert list(counts) == sorted(set(counts), reverse=True)
    assert all(more <= 2 * fewer for more, fewer in pairwise(counts))


@pytest.mark.parametrize(("tokens", "first"), [(1, 64), (64, 64), (65, 128), (300, 512), (512, 512), (8192, 512)])
def test_ubatch_begins_at_what_a_step_has(tokens: int, first: int) -> None:
    assert first_settings(4, tokens).ubatch == first


@given(tokens=st.integers(1, 10_000))
def test_ubatch_stays_between_64_and_2048_and_what_a_step_needs(tokens: int) -> None:
    first = first_settings(4, tokens).ubatch
    candidates = [one for walk in walks(4, tokens) for one in walk(first_settings(4, tokens))]
    sizes = [one.ubatch for one in candidates if one.flash and one.threads == 4]
    assert all(64 <= size <= min(2048, max(64, 2 * tokens)) for size in (first, *sizes))
    assert first not in sizes
