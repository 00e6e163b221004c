"""The one setting that plain Transformers is tuned in: how many threads PyTorch has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

_TRIES = 3
# Counts go down from all cores: one that is so much slower than the best ends the search.
_HOPELESS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """How many `threads` were chosen in `took_s` seconds, and the median seconds of a step with each count tried."""

    threads: int
    took_s: float
    medians_s: Mapping[int, float]

    def told(self, label: str) -> str:
        """The choice and what it rests on, in a sentence."""
        if not self.medians_s:
            return f"{label} not tuned: threads {self.threads}, peer.tune_s has no room for a timed step"
        tried = ", ".join(f"{1e3 * step_s:.4g} ms with {count}" for count, step_s in self.medians_s.items())
        return f"{label} tuned in {self.took_s:.1f} s: threads {self.threads}, of a median step of {tried}"


def thread_counts(most: int) -> tuple[int, ...]:
    """All of `most` cores, then three quarters, half, three eighths, ... of them, down to one."""
    counts, whole = {most}, most
    while whole > 1:
        counts |= {max(1, 3 * whole // 4), whole // 2}
        whole //= 2
    return tuple(sorted(counts, reverse=True))


def tune(
    step: Callable[[], object],
    use: Callable[[int], None],
    counts: Sequence[int],
    budget_s: float,
    clock: Callable[[], float] = perf_counter,
) -> Tuning:
    """Tries a few steps with each of `counts` threads, descending, within `budget_s` seconds; the fastest stays.

    The first step with a count is not timed. What would not fit in the budget is not begun, except the very first step.
    """
    began, medians_s = clock(), dict[int, float]()
    ends = began + budget_s
    for count in counts:
        if _least_s(count, medians_s) >= ends - clock():
            break
        use(count)
        tries_s = _tries_s(step, ends, clock)
        if not tries_s:
            break
        medians_s[count] = median(tries_s)
        if medians_s[count] > _HOPELESS * min(medians_s.values()):
            break
    threads = min(medians_s, key=medians_s.__getitem__, default=counts[0])
    use(threads)
    return Tuning(threads=threads, took_s=clock() - began, medians_s=medians_s)


def _least_s(count: int, medians_s: Mapping[int, float]) -> float:
    """What two steps are expected to take where fewer threads are slower in proportion; 0 where nothing is known."""
    return min((2 * step_s * tried / count for tried, step_s in medians_s.items()), default=0.0)


def _tries_s(step: Callable[[], object], ends: float, clock: Callable[[], float]) -> list[float]:
    """Seconds of steps after a first one."""
    took_s: list[float] = []
    while len(took_s) <= _TRIES and clock() + sum(took_s[-1:]) < ends:
        began = clock()
        step()
        took_s.append(clock() - began)
    return took_s[1:]
