"""Finds the fastest settings of a peer within a budget of seconds, and reports the basis of the choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

# Timed steps per settings: at least three, more for short steps until they take 0.2 s together.
_MIN_STEPS, _MAX_STEPS, _TIMED_S = 3, 50, 0.2
# A walk ends when, for example, fewer threads are slower than the best settings by this factor.
_SLOWER = 1.25


class TunableSettings(Protocol):
    """The tunable settings of a peer; `str` gives the text for notes."""

    @property
    def threads(self) -> int:
        """Threads that compute."""
        ...

    @property
    def context(self) -> Hashable:
        """The part of the settings that is slow to change."""
        ...


S = TypeVar("S", bound=TunableSettings)
S_contra = TypeVar("S_contra", bound=TunableSettings, contravariant=True)
# Candidates in the neighbourhood of the best settings so far, tried in order until one is clearly slower.
Walk = Callable[[S], Sequence[S]]


class Bench(Protocol[S_contra]):
    """Runs steps of one workload on a loaded model."""

    def prepare(self, settings: S_contra) -> None:
        """Use these settings for the next steps; slow if their `context` is new."""
        ...

    def step(self) -> object:
        """Run one step of the workload."""
        ...

    def keep(self, settings: S_contra) -> None:
        """Release whatever these settings do not need."""
        ...


class StepsBench(Generic[S]):
    """Implements `Bench` if nothing must be released: `steps_on` prepares settings and yields endless steps."""

    def __init__(self, steps_on: Callable[[S], Iterator[None]]) -> None:
        self._steps_on = steps_on

    def prepare(self, settings: S) -> None:
        self._steps = self._steps_on(settings)

    def step(self) -> None:
        next(self._steps)

    def keep(self, settings: S) -> None:
        """See `Bench`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadCount:
    """Settings of a peer for which only the number of threads is tuned."""

    threads: int
    context: None = None

    def __str__(self) -> str:
        return f"threads {self.threads}"


def thread_counts(most: int) -> tuple[int, ...]:
    """All of `most` cores, then three quarters, half, three eighths, ... of them, down to one."""
    counts, whole = {most}, most
    while whole > 1:
        counts |= {max(1, 3 * whole // 4), whole // 2}
        whole //= 2
    return tuple(sorted(counts, reverse=True))


def vary(field: str, values: Sequence[Any]) -> Walk[Any]:
    """A walk that gives one field of the settings these values."""
    return lambda best: [replace(best, **{field: value}) for value in values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(Generic[S]):
    """Settings, and the median seconds of a step with them."""

    settings: S
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned(Generic[S]):
    """The settings chosen in `took_s` seconds; without trials, the initial ones."""

    settings: S
    took_s: float = 0.0
    trials: tuple[Trial[S], ...] = ()

    def explain(self, system: str) -> str:
        """One sentence for the record, such as `llama.cpp 0.3 tuned in 12.3 s over 6 settings: threads 2, ...`."""
        if not self.trials:
            return f"{system} not tuned (peer.tune_s=0, or a single setting): {self.settings}"
        slowest = max(self.trials, key=_step_s)
        return (
            f"{system} tuned in {self.took_s:.1f} s over {len(self.trials)} settings: {self.settings} "
            f"({1e3 * best_of(self.trials).step_s:.4g} ms a step; "
            f"slowest {1e3 * slowest.step_s:.4g} ms with {slowest.settings})"
        )


def best_of(trials: Sequence[Trial[S]]) -> Trial[S]:
    """The fastest trial, the first of equals."""
    return min(trials, key=_step_s)


def _step_s(trial: Trial[Any]) -> float:
    return trial.step_s


def search(
    first: S,
    walks: Sequence[Walk[S]],
    budget_s: float,
    measure: Callable[[Trial[S] | None, Sequence[S], float], Sequence[Trial[S]]],
    clock: Callable[[], float] = perf_counter,
) -> Tuned[S]:
    """The fastest of `first` and the candidates of each walk, which begins at the best settings so far.

    `measure(best, candidates, left_s)` tries candidates in order, as many as fit in `left_s` seconds and make sense
    after `best`; the first settings (best None) are always tried. Nothing is tried without a budget or a choice.
    """
    if budget_s <= 0 or not any(walk(first) for walk in walks):
        return Tuned(settings=first)
    ends_s = clock() + budget_s
    trials = list(measure(None, [first], budget_s))
    for walk in walks:
        best, left_s = best_of(trials), ends_s - clock()
        if left_s > 0 and (candidates := walk(best.settings)):
            trials += measure(best, candidates, left_s)
    return Tuned(settings=best_of(trials).settings, took_s=budget_s - (ends_s - clock()), trials=tuple(trials))


class Tuner(Generic[S]):
    """Tunes a peer whose steps can be run one at a time.

    The first step with each settings is a warm-up, counted only if the budget has no room for another. A candidate that
    would not fit in the remaining budget is not started. The budget begins once `first` is prepared, which is needed in
    any case.
    """

    def __init__(self, bench: Bench[S], budget_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._bench, self._budget_s, self._clock = bench, budget_s, clock
        self._prepare_s = 0.0

    def tune(self, first: S, walks: Sequence[Walk[S]]) -> Tuned[S]:
        """The fastest settings, for which the bench is left prepared."""
        self._prepare(first)
        tuned = search(first, walks, self._budget_s, self._measure, self._clock)
        if tuned.trials:
            self._bench.prepare(tuned.settings)
        return tuned

    def _measure(self, best: Trial[S] | None, candidates: Sequence[S], left_s: float) -> list[Trial[S]]:
        ends_s, trials = self._clock() + left_s, list[Trial[S]]()
        for candidate in candidates:
            if best is not None and self._expected_s(candidate, best) > ends_s - self._clock():
                break
            trial = self._try(candidate, ends_s)
            trials.append(trial)
            best, before = (trial if best is None else best_of([best, trial])), best
            self._bench.keep(best.settings)
            if before is not None and trial.step_s > _SLOWER * before.step_s:
                break
        return trials

    def _expected_s(self, candidate: S, best: Trial[S]) -> float:
        """Seconds of a warm-up and one timed step, assuming that fewer threads are slower in proportion."""
        prepare_s = self._prepare_s if candidate.context != best.settings.context else 0.0
        return prepare_s + 2 * best.step_s * max(1.0, best.settings.threads / candidate.threads)

    def _try(self, settings: S, ends_s: float) -> Trial[S]:
        self._prepare(settings)
        warm_up_s = last_s = self._timed_step_s()
        steps_s: list[float] = []
        while (
            last_s <= ends_s - self._clock()
            and len(steps_s) < _MAX_STEPS
            and (len(steps_s) < _MIN_STEPS or sum(steps_s) < _TIMED_S)
        ):
            last_s = self._timed_step_s()
            steps_s.append(last_s)
        return Trial(settings=settings, step_s=median(steps_s or [warm_up_s]))

    def _timed_step_s(self) -> float:
        began_s = self._clock()
        self._bench.step()
        return self._clock() - began_s

    def _prepare(self, settings: S) -> None:
        began_s = self._clock()
        self._bench.prepare(settings)
        self._prepare_s = max(self._prepare_s, self._clock() - began_s)
