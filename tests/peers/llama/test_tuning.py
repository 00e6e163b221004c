"""Tuning on a clock that only moves when something is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.peers.llama.settings import Settings, fewer_threads, first_settings, walks
from ktbench.peers.llama.tuning import Tuned, Tuner


class ScriptedBench:
    """Settings have a price; the clock goes on by it."""

    def __init__(self, step_s: Callable[[Settings], float], prepare_s: float = 0.0) -> None:
        self.price_s, self.prepare_s = step_s, prepare_s
        self.now_s = 0.0
        self.open: set[tuple[int, bool]] = set()
        self.most_open = 0
        self.steps: list[Settings] = []

    def prepare(self, settings: Settings) -> None:
        if settings.needs_context not in self.open:
            self.now_s += self.prepare_s
            self.open.add(settings.needs_context)
            self.most_open = max(self.most_open, len(self.open))
        self.settings = settings

    def step(self) -> None:
        self.now_s += self.price_s(self.settings)
        self.steps.append(self.settings)

    def keep(self, settings: Settings) -> None:
        self.open &= {settings.needs_context}

    def tune(self, cores: int, tokens: int, budget_s: float) -> Tuned:
        tuner = Tuner(self, budget_s, lambda: self.now_s)
        return tuner.tune(first_settings(cores, tokens), walks(cores, tokens))

    @property
    def tried(self) -> list[Settings]:
        return list(dict.fromkeys(self.steps))


def flat(_settings: Settings) -> float:
    return 0.125  # adds up exactly


def test_order_is_fixed_and_begins_with_all_cores() -> None:
    bench = ScriptedBench(flat)
    tuned = bench.tune(cores=8, tokens=2048, budget_s=1000)
    base = Settings(threads=8)
    assert bench.tried == [
        base,
        Settings(threads=8, ubatch=1024),
        Settings(threads=8, ubatch=2048),
        Settings(threads=8, ubatch=256),
        Settings(threads=8, ubatch=128),
        Settings(threads=8, ubatch=64),
        Settings(threads=8, flash=False),
        *(Settings(threads=count) for count in (6, 4, 2, 1)),
    ]
    assert tuned.settings == base  # of equals the first
    assert [trial.settings for trial in tuned.trials] == bench.tried


def test_finds_the_best_of_every_kind_together() -> None:
    best = Settings(threads=4, ubatch=1024, flash=False)

    def price_s(settings: Settings) -> float:
        wrong = (settings.threads != best.threads) + (settings.ubatch != best.ubatch) + (settings.flash != best.flash)
        return 0.1 * 1.5**wrong * (8 / settings.threads if settings.threads < 4 else 1)

    bench = ScriptedBench(price_s, prepare_s=0.5)
    assert bench.tune(cores=6, tokens=4096, budget_s=1000).settings == best
    assert bench.settings == best  # and left ready to run on it
    assert bench.open == {best.needs_context}
    assert bench.most_open == 2


def test_a_way_that_makes_it_slower_is_left() -> None:
    bench = ScriptedBench(lambda settings: 1.0 / settings.threads)
    bench.tune(cores=32, tokens=1, budget_s=1000)
    assert [s.threads for s in bench.tried] == [32, 32, 24]


def test_decode_leaves_ubatch_alone() -> None:
    bench = ScriptedBench(flat)
    bench.tune(cores=2, tokens=3, budget_s=1000)
    first = Settings(threads=2, ubatch=64)
    assert bench.tried == [first, replace(first, flash=False), replace(first, threads=1)]


@given(
    cores=st.integers(1, 64),
    tokens=st.integers(1, 8192),
    budget_s=st.floats(0.01, 200),
    step_s=st.floats(0.001, 60),
    prepare_s=st.floats(0, 100),
)
def test_budget_holds_whatever_comes_first(
    cores: int, tokens: int, budget_s: float, step_s: float, prepare_s: float
) -> None:
    """Where threads scale, what a try takes is what it was expected to."""
    bench = ScriptedBench(lambda settings: step_s / settings.threads, prepare_s)
    tuned = bench.tune(cores, tokens, budget_s)
    first_s = 9 * step_s / cores
    assert tuned.trials[0].settings == first_settings(cores, tokens)
    assert tuned.took_s <= max(budget_s, first_s) * (1 + 1e-9) + 9 * 0.2 / 3
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


def test_without_a_budget_nothing_is_tried() -> None:
    bench = ScriptedBench(flat)
    tuned = bench.tune(cores=2, tokens=512, budget_s=0)
    assert not bench.steps
    assert (
        tuned.told("llama.cpp 1") == "llama.cpp 1 not tuned (peer.tune_s=0): threads 2, ubatch 512, flash attention on"
    )


def test_what_was_found_is_told_with_units() -> None:
    bench = ScriptedBench(lambda settings: 0.25 if settings.flash else 0.5)
    told = bench.tune(cores=1, tokens=1, budget_s=100).told("llama.cpp 1")
    assert told == (
        "llama.cpp 1 tuned in 2.2 s over 2 settings: threads 1, ubatch 64, flash attention on "
        "(250 ms a step; slowest 500 ms)"
    )


@given(cores=st.integers(1, 300))
def test_thread_counts_go_down_to_one(cores: int) -> None:
    counts = fewer_threads(cores)
    assert list(counts) == sorted(set(counts), reverse=True)
    assert all(1 <= count < cores for count in counts)
    assert cores == 1 or counts[-1] == 1


@pytest.mark.parametrize(("tokens", "first"), [(1, 64), (64, 64), (65, 128), (300, 512), (512, 512), (8192, 512)])
def test_ubatch_begins_at_what_a_step_has(tokens: int, first: int) -> None:
    assert first_settings(4, tokens).ubatch == first


@given(tokens=st.integers(1, 10_000))
def test_ubatch_stays_between_64_and_2048_and_what_a_step_needs(tokens: int) -> None:
    first = first_settings(4, tokens).ubatch
    sizes = [change["ubatch"] for walk in walks(4, tokens) for change in walk if "ubatch" in change]
    assert all(64 <= size <= min(2048, max(64, 2 * tokens)) for size in (first, *sizes))
    assert first not in sizes
