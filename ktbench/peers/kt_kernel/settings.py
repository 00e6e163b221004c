"""The settings that kt-kernel is tuned in: how many workers, in how many pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from ktbench.engine.protocol import Unsupported
from ktbench.spec.peers import KT_MOST_BYTES

# Memory that the weights of all settings may take together: kt-kernel binds weights to a pool and never frees them.
_TRIED_S = 1.0
_FEW_CORES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The pools that share a call, each with a part of every expert: NUMA node and workers of each."""

    nodes: tuple[int, ...]
    workers: tuple[int, ...]

    def __str__(self) -> str:
        """As notes write it: `2 workers in 1 pool`."""
        workers, pools = sum(self.workers), len(self.workers)
        return f"{workers} worker{'s' * (workers > 1)} in {pools} pool{'s' * (pools > 1)}"


def settings_for(cores: int, nodes: Sequence[int], copies_bytes: int) -> tuple[Setting, ...]:
    """Settings worth a try on `cores` cores of these NUMA nodes, the one to take untried first.

    The thread that hands a call over spins until the workers are done. So a worker on every core is one thread too
    many, and on few cores a core without a worker is much lost: both are tried, and on one node a pool for each half
    of the cores, which meet once a call and not after each of its phases. There are as many as fit into 8 GiB with the
    weights of each, `copies_bytes`, but one at least. Raises Unsupported for nodes that kt-kernel cannot count.
    """
    pools = len(nodes)
    if tuple(nodes) != tuple(range(pools)):
        raise Unsupported(f"kt-kernel has a pool for each NUMA node from 0 on, these cores lie on {list(nodes)}")
    if cores < pools:
        raise Unsupported(f"kt-kernel needs a worker on each of {pools} NUMA nodes, there are {cores} threads")
    found = [Setting(nodes=tuple(nodes), workers=_shared(cores, pools))]
    if cores > pools:
        found.append(Setting(nodes=tuple(nodes), workers=_shared(cores - 1, pools)))
    if cores > _FEW_CORES:
        found.reverse()
    if pools == 1 and cores > 1:
        found.append(Setting(nodes=(0, 0), workers=_shared(cores, 2)))
    return tuple(found[: max(1, KT_MOST_BYTES // copies_bytes)])


def _shared(cores: int, pools: int) -> tuple[int, ...]:
    return tuple(cores // pools + (i < cores % pools) for i in range(pools))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The setting that was chosen, and the median seconds of a step with each that was tried."""

    setting: Setting
    medians_s: Mapping[Setting, float] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The choice and what it rests on, such as `tuning chose 2 workers in 1 pool: median step 8.0 ms with ...`."""
        if not self.medians_s:
            return f"not tuned, {self.setting}"
        tried = ", ".join(f"{1e3 * took_s:.1f} ms with {setting}" for setting, took_s in self.medians_s.items())
        return f"tuning chose {self.setting}: median step {tried}"


def tune(
    trials: Mapping[Setting, Iterator[object]],
    budget_s: float,
    between: Callable[[], None],
    clock: Callable[[], float] = perf_counter,
) -> Tuned:
    """Tries each setting by `next` on its steps for an equal share of `budget_s` seconds, a second at most.

    A step without timing comes first; `between` is called before each setting. One setting alone is not tried.
    """
    settings = list(trials)
    if budget_s <= 0 or len(settings) < 2:
        return Tuned(setting=settings[0])
    share_s = min(_TRIED_S, budget_s / len(settings))
    medians_s = {}
    for setting, steps in trials.items():
        between()
        medians_s[setting] = _median_s(steps, share_s, clock)
    return Tuned(setting=min(medians_s, key=medians_s.__getitem__), medians_s=medians_s)


def _median_s(steps: Iterator[object], share_s: float, clock: Callable[[], float]) -> float:
    ends, took_s = clock() + share_s, list[float]()
    next(steps)
    while not took_s or clock() < ends:
        began = clock()
        next(steps)
        took_s.append(clock() - began)
    return median(took_s)
