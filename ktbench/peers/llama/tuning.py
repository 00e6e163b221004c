"""Finds the fastest settings of a peer within a budget of seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Protocol

from ktbench.peers.llama.settings import Settings, Walk

Clock = Callable[[], float]
_LEAST_TRIES, _MOST_TRIES = 3, 9
# Short steps are tried more often, for so long together.
_TRIED_S = 0.2
# A way is left where it has made a step slower by more than tries of the same settings differ.
_SLOWER = 1.05


class Bench(Protocol):
    """Where settings are tried: a workload on a loaded model."""

    def prepare(self, settings: Settings) -> None:
        """Have a step run on these settings; slow where they need another context."""

    def step(self) -> None:
        """One step of the workload."""

    def keep(self, settings: Settings) -> None:
        """Let go of whatever these settings do not need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Settings, and the median of the seconds that a step took on them."""

    settings: Settings
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What tuning found in `took_s` seconds; without trials the first settings, as they are."""

    settings: Settings
    took_s: float = 0.0
    trials: tuple[Trial, ...] = ()

    def told(self, system: str) -> str:
        """One sentence for the record, such as `llama.cpp 0.3 tuned in 12.3 s over 6 settings: threads 2, ...`."""
        if not self.trials:
            return f"{system} not tuned (peer.tune_s=0): {self.settings}"
        steps_ms = [1e3 * trial.step_s for trial in self.trials]
        return (
            f"{system} tuned in {self.took_s:.1f} s over {len(steps_ms)} settings: {self.settings} "
            f"({min(steps_ms):.4g} ms a step; slowest {max(steps_ms):.4g} ms)"
        )


class Tuner:
    """Tries one change after the other to the best settings so far, in a fixed order.

    A try that would not fit in what is left of `budget_s` is not begun, except the first. The budget begins with the
    first settings prepared: that has to be done anyway.
    """

    def __init__(self, bench: Bench, budget_s: float, clock: Clock = perf_counter) -> None:
        self._bench, self._budget_s, self._clock = bench, budget_s, clock
        self._trials: list[Trial] = []
        self._prepare_s = self._began_s = 0.0

    def tune(self, first: Settings, walks: tuple[Walk, ...]) -> Tuned:
        """The fastest of `first` and what `walks` lead to; `first` untried where there is no budget."""
        self._prepare(first)
        if not self._budget_s:
            return Tuned(settings=first)
        self._began_s = self._clock()
        self._try(first)
        for walk in walks:
            self._follow(walk)
        best = self._best.settings
        self._bench.prepare(best)
        return Tuned(settings=best, took_s=self._clock() - self._began_s, trials=tuple(self._trials))

    @property
    def _best(self) -> Trial:
        return min(self._trials, key=lambda trial: trial.step_s)

    @property
    def _left_s(self) -> float:
        return self._budget_s - (self._clock() - self._began_s)

    def _follow(self, walk: Walk) -> None:
        for change in walk:
            best = self._best
            candidate = replace(best.settings, **change)
            if self._cost_s(candidate, best) > self._left_s:
                return
            if self._try(candidate) > _SLOWER * best.step_s:
                return

    def _cost_s(self, candidate: Settings, best: Trial) -> float:
        """The least that a try is expected to take, where fewer threads are slower in proportion."""
        prepare_s = self._prepare_s if candidate.needs_context != best.settings.needs_context else 0.0
        slower = max(1.0, best.settings.threads / candidate.threads)
        return prepare_s + _LEAST_TRIES * slower * best.step_s

    def _try(self, settings: Settings) -> float:
        self._prepare(settings)
        trial = Trial(settings=settings, step_s=self._step_s())
        self._trials.append(trial)
        self._bench.keep(self._best.settings)
        return trial.step_s

    def _prepare(self, settings: Settings) -> None:
        began_s = self._clock()
        self._bench.prepare(settings)
        self._prepare_s = max(self._prepare_s, self._clock() - began_s)

    def _step_s(self) -> float:
        took_s: list[float] = []
        while len(took_s) < _LEAST_TRIES or (len(took_s) < _MOST_TRIES and sum(took_s) < _TRIED_S):
            began_s = self._clock()
            self._bench.step()
            took_s.append(self._clock() - began_s)
            if self._left_s < took_s[-1]:
                break
        return median(took_s)
