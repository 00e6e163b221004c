"""Which loop of the kernels is fastest from how many tokens per expert on: measured once per machine, then cached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from ktbench.files import write_whole
from ktbench.host.health import read_settings
from ktbench.host.roofs import pinned_team
from ktbench.resources import cache_folder
from ktbench.spec.wire import digest

# The timed layer: as wide as Qwen3-30B-A3B's, two experts at a time, larger together than the caches of a few cores.
_HIDDEN, _INTERMEDIATE, _ACTIVE, _EXPERTS = 2048, 768, 2, 24
_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)
# Time for all instruction sets; packing takes up to half a second more.
_BUDGET_S = 1.2
# The gain over the shipped thresholds that others must have, as a share of the time.
_LEAST_GAIN = 0.02
_LEAST_ROUNDS = 2
_NEVER = 2**30
# Loops of a vector instruction set, with the crossover that forces each for any number of tokens.
_LOOPS = {"stream": (_NEVER, _NEVER), "fetching": (1, _NEVER), "block": (1, 1)}
_TILES = "amx"

T = TypeVar("T")
Seconds = Mapping[int, Mapping[str, float]]
"""Tokens per expert -> loop -> seconds of a call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """Which loop of `isa` multiplies `precision`, by tokens per expert.

    Streams up to `block_from`, with prefetches from `fetch_from` on, register blocks from `block_from` on; for AMX,
    `block_from` is where tiles become faster than vectors. `measured` is the date (ISO 8601), None for shipped ones.
    """

    isa: str
    precision: str
    fetch_from: int
    block_from: int
    measured: str | None = None

    def __str__(self) -> str:
        if self.isa == _TILES:
            return f"{self.isa} from {self.block_from} tokens per expert"
        prefetches = "" if self.fetch_from >= self.block_from else f", with prefetches from {self.fetch_from}"
        blocks = "" if self.block_from == _NEVER else f", register blocks from {self.block_from}"
        return f"{self.isa} streams{prefetches}{blocks}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """Content of the cache: crossovers by machine and build of the kernels."""

    machines: dict[str, dict[str, tuple[Crossover, ...]]] = field(default_factory=dict)


def cache_file() -> Path:
    """Where measured crossovers are kept."""
    return cache_folder() / "crossovers.json"


def read_crossovers(kernels: ModuleType, cpus: Sequence[int]) -> tuple[Crossover, ...]:
    """The crossovers with which a run on `cpus` begins: measured ones, else shipped ones, in the kernels' order."""
    kept = {
        (crossover.isa, crossover.precision): crossover
        for crossovers in _read().machines.get(_key(kernels, cpus), {}).values()
        for crossover in crossovers
    }
    shipped = (
        Crossover(isa=isa, precision=precision, fetch_from=fetch, block_from=block)
        for (isa, precision), (fetch, block) in kernels.crossovers().items()
        if isa in _isas(kernels, precision)
    )
    return tuple(kept.get((default.isa, default.precision), default) for default in shipped)


def use_crossovers(
    kernels: ModuleType, precisions: Iterable[str], cpus: Sequence[int], *, anew: bool = False
) -> tuple[Crossover, ...]:
    """Set the kernels' crossovers for some precisions, and return them.

    Those missing from the cache (with `anew` all) are measured on `cpus`, in about two seconds per precision.
    """
    key = _key(kernels, cpus)
    kept = _read().machines.get(key, {})
    by_precision = {
        p: kept[p] if p in kept and not anew else _measure(kernels, p, cpus) for p in dict.fromkeys(precisions)
    }
    if new := {p: crossovers for p, crossovers in by_precision.items() if crossovers is not kept.get(p)}:
        _write(key, new)
    used = tuple(crossover for crossovers in by_precision.values() for crossover in crossovers)
    for crossover in used:
        kernels.set_crossover(crossover.isa, crossover.precision, crossover.fetch_from, crossover.block_from)
    return used


def _key(kernels: ModuleType, cpus: Sequence[int]) -> str:
    """The machine, and the kernels that were timed on it."""
    build = digest({"grants": kernels.grants(), "kernels": kernels.build_id()})
    return f"{read_settings(cpus=cpus).cpu_model}, {len(cpus)} cores, {build}"


def _read() -> _Kept:
    """Empty without a readable cache: crossovers are then measured again."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(cache_file().read_bytes(), type=_Kept)
    return _Kept()


def _write(key: str, new: Mapping[str, tuple[Crossover, ...]]) -> None:
    """If the cache cannot be written, nothing is cached."""
    path, machines = cache_file(), _read().machines
    machines[key] = machines.get(key, {}) | dict(new)
    with suppress(OSError):
        write_whole(path, msgspec.json.format(msgspec.json.encode(_Kept(machines=machines))))


def _measure(kernels: ModuleType, precision: str, cpus: Sequence[int]) -> tuple[Crossover, ...]:
    """The crossovers of the fastest instruction set of each feature with kernels for the precision."""
    isas, shipped, day = _isas(kernels, precision), kernels.crossovers(), datetime.now(UTC).date().isoformat()
    vectors, tiles = [isa for isa in isas if isa != _TILES], [isa for isa in isas if isa == _TILES]
    layer = _Layer(kernels, precision, cpus)
    measured = []
    for isa in vectors:
        # Tiles are compared with the faster vector instruction set, which comes last.
        loops = {**dict.fromkeys(_LOOPS, isa), **{tile: tile for tile in tiles if isa == vectors[-1]}}
        seconds = layer.time(loops, _BUDGET_S / len(vectors))
        fetch, block = fit_loops(seconds, shipped[isa, precision])
        measured.append(Crossover(isa=isa, precision=precision, fetch_from=fetch, block_from=block, measured=day))
        if _TILES in loops:
            first = fit_tiles(seconds, (fetch, block), shipped[_TILES, precision][1])
            measured.append(Crossover(isa=_TILES, precision=precision, fetch_from=1, block_from=first, measured=day))
    return tuple(measured)


def _isas(kernels: ModuleType, precision: str) -> list[str]:
    """The instruction set that each feature runs, slower ones first."""
    names = dict.fromkeys(isa for isa, of in kernels.crossovers() if of == precision)
    features = dict.fromkeys(kernels.isas()[isa]["feature"] for isa in names)
    return [kernels.isa_of(feature, precision) for feature in features]


class _Layer:
    """Packed experts that take calls of some tokens each."""

    def __init__(self, kernels: ModuleType, precision: str, cpus: Sequence[int]) -> None:
        self._kernels, self._precision = kernels, precision
        team = pinned_team(kernels, cpus)
        packed = kernels.PackedExperts(_EXPERTS, _HIDDEN, _INTERMEDIATE, precision)
        write, weights = _writer(packed, kernels.formats()[precision])
        for i in range(_EXPERTS):
            write(i, *weights, team)
        self._moe, self._first = kernels.MoE(packed, team), 0

    def time(self, loops: Mapping[str, str], budget_s: float) -> Seconds:
        """The fastest call of each loop, in alternating rounds; `loops` maps each loop to its instruction set."""
        best: dict[int, dict[str, float]] = {tokens: dict.fromkeys(loops, math.inf) for tokens in _TOKENS}
        began, rounds = monotonic(), 0
        while rounds < _LEAST_ROUNDS or monotonic() - began < budget_s:
            for tokens in _TOKENS:
                for loop, isa in loops.items():
                    best[tokens][loop] = min(best[tokens][loop], self._call_s(tokens, loop, isa))
            rounds += 1
        return best

    def _call_s(self, tokens: int, loop: str, isa: str) -> float:
        import numpy as np  # doctor reads crossovers without it

        if loop in _LOOPS:
            self._kernels.set_crossover(isa, self._precision, *_LOOPS[loop])
        hidden = np.zeros((tokens * _ACTIVE, _HIDDEN), np.uint16)
        ids = (self._first + np.arange(tokens * _ACTIVE, dtype=np.int64)[:, None] % _ACTIVE) % _EXPERTS
        self._first = (self._first + _ACTIVE) % _EXPERTS
        gates, out = np.ones(ids.shape, np.float32), np.empty_like(hidden)
        began = monotonic()
        self._moe.forward(hidden, ids, gates, out, isa=isa, dynamic=True)
        return monotonic() - began


def _writer(packed: Any, row: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The method that packs an expert, and weights for it: zeros, since no loop's speed depends on the values."""
    import numpy as np

    shapes = ((_INTERMEDIATE, _HIDDEN), (_INTERMEDIATE, _HIDDEN), (_HIDDEN, _INTERMEDIATE))
    if not row["block_bytes"]:
        return packed.write_expert, [np.zeros(shape, np.uint16) for shape in shapes]
    blocks = [np.zeros((rows, columns // row["group"] * row["block_bytes"]), np.uint8) for rows, columns in shapes]
    return packed.write_expert_blocks, blocks


def fit_loops(seconds: Seconds, shipped: tuple[int, int]) -> tuple[int, int]:
    """The thresholds, in tokens, for prefetches and blocks with the smallest geometric mean of the times."""
    firsts = (*seconds, _NEVER)
    return _best(
        [shipped, *((fetch, block) for block in firsts for fetch in firsts)], seconds, lambda n, of: loop_at(n, *of)
    )


def fit_tiles(seconds: Seconds, loops: tuple[int, int], shipped: int) -> int:
    """The threshold, in tokens, from which tiles are faster than the loops chosen by the thresholds `loops`."""
    return _best([shipped, *seconds, _NEVER], seconds, lambda n, of: _TILES if n >= of else loop_at(n, *loops))


def _best(options: Sequence[T], seconds: Seconds, loop: Callable[[int, T], str]) -> T:
    """The first option, unless another gains enough over it."""

    def cost(option: T) -> float:
        return sum(math.log(of[loop(tokens, option)]) for tokens, of in seconds.items()) / len(seconds)

    best = min(options, key=cost)
    return best if cost(options[0]) - cost(best) > _LEAST_GAIN else options[0]


def loop_at(tokens: int, fetch_from: int, block_from: int) -> str:
    """The loop that the thresholds choose."""
    return "block" if tokens >= block_from else "fetching" if tokens >= fetch_from else "stream"


def crossover_lines(crossovers: Iterable[Crossover]) -> Iterator[tuple[str, str]]:
    """Precision and its crossovers, with the date of measurement, for display."""
    by_precision: dict[str, list[Crossover]] = {}
    for crossover in crossovers:
        by_precision.setdefault(crossover.precision, []).append(crossover)
    for precision, loops in by_precision.items():
        days = dict.fromkeys(
            f"measured {crossover.measured}" if crossover.measured else "shipped, not measured yet"
            for crossover in loops
        )
        yield precision, f"{'; '.join(map(str, loops))} ({', '.join(days)})"
