"""The machine's limits at this moment, measured in the process and on the cores that do the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from types import ModuleType
from typing import Any

from ktbench.host.code import load_extension
from ktbench.spec.record import RoofSample
from ktbench.spec.system_metrics import READ_BUFFER_BYTES

# Fastest first. Each has a peak per dtype, from the best instructions granted for it: AVX-512 with its BF16 and VNNI
# extensions if granted. AVX2 has no bf16 arithmetic: its kernels widen to float32, and so does its peak.
PEAK_ISAS = ("amx", "avx512", "avx2")
PEAK_DTYPES = ("bf16", "int8")
# Measured on a two-core Granite Rapids guest, thousands of samples, each against the next: medians of 6, 3.6, 2.7, 2.6
# and 2.5 % apart at 1, 5, 10, 20 and 30 ms of reading, 4, 2.7, 1.3 and 0.9 % at 1, 4, 8 and 16 ms of AMX peak. The
# error of two samples for the 100 ms between them (3.7 %) does not improve with samples of 50 ms: the machine itself
# varies.
_READ_S = 0.010
_PEAK_S = 0.010
_HOP_TRIES = 5
# Kernel or hypervisor may reclaim memory that is not read for a while: on such a virtual machine the first reading ran
# at 1 to 15 GB/s, every later one at 33.
_IDLE_S = 1.0
# Long enough to stay awake between two chunks, short enough not to steal time from the work that follows.
_SPIN_US = 50


# Weights of up to this many times the size of a cache are read faster, because a part stays cached between steps.
_CACHED = 8
_LEAST_BUFFER = 1 << 18
# Shorter than the time that a scheduler gives to another program: on a busy machine some windows are undisturbed.
_WINDOW_S, _WINDOWS = 0.001, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """The limit of every step: bytes read per second, and operations per second, 0 if no instructions were timed."""

    read_bytes_per_s: float
    peak_flops: float


class Roofs:
    """Limits of one team of threads, an `OpenMPTeam` or `ThreadPool` of the extension. Opening takes 1 GiB.

    `prepare` is called before each sample.
    """

    def __init__(
        self,
        team: Any,
        kernels: ModuleType,
        buffer_bytes: int = READ_BUFFER_BYTES,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._kernels, self._team, self._prepare = kernels, team, prepare
        self._read = kernels.ReadRoof(team, buffer_bytes)
        self._read_at_s = float("-inf")
        self.peak_isa = best_isa(kernels.grants())
        self._buffer_bytes = buffer_bytes
        self._levels: dict[int, Any] = {}
        self._fastest_read: dict[int, float] = {}
        self._fastest_memory = self._fastest_peak = 0.0

    def sample(self, isa: str | None = None, dtype: str = "bf16") -> RoofSample:
        """Read bandwidth, arithmetic peak of `isa` (of the best granted one by default) in `dtype`, core-to-core time.

        Takes about 25 ms. Raises ValueError for a `dtype` not in PEAK_DTYPES, RuntimeError for an `isa` of PEAK_ISAS
        that this machine does not grant; others have no peak.
        """
        if dtype not in PEAK_DTYPES:
            raise ValueError(f"roof of dtype {dtype!r}: allowed are {', '.join(PEAK_DTYPES)}")
        self._prepare()
        isa = isa or self.peak_isa
        read, peak = self.read_bytes_per_s(), self.peak_flops(isa, dtype) if isa in PEAK_ISAS else None
        self._fastest_memory = max(self._fastest_memory, read)
        self._fastest_peak = max(self._fastest_peak, peak or 0.0)
        return RoofSample(
            read_bytes_per_s=read,
            peak_flops=peak,
            peak_isa=isa,
            peak_dtype=dtype,
            ping_pong_ns=self.ping_pong_ns() if self._team.threads == 2 else None,  # of more it says nothing
        )

    def ceiling(self, weight_bytes: int, *, again: bool = False) -> Ceiling:
        """The limit of a step that reads `weight_bytes`, from the fastest of all samples.

        Weights are read from any level of memory that could hold an eighth of them; arithmetic is that of the fastest
        instructions granted for any dtype. Sampled on the first request for a level, and with `again`: takes about 70
        ms.
        """
        size = 1 << max(_LEAST_BUFFER * self._team.threads, weight_bytes // _CACHED).bit_length() - 1
        size = min(size, self._buffer_bytes)
        if again or size not in self._levels:
            self._sample_ceiling(size)
        read = max(self._fastest_read[size], self._fastest_memory)
        return Ceiling(read_bytes_per_s=read, peak_flops=self._fastest_peak)

    def _sample_ceiling(self, size: int) -> None:
        """Sample reads from `size` bytes and all peaks."""
        self._prepare()
        if size not in self._levels:
            whole = size == self._buffer_bytes
            self._levels[size] = self._read if whole else self._kernels.ReadRoof(self._team, size)
        reads = [float(self._levels[size].sample(_WINDOW_S)) for _ in range(_WINDOWS)]
        self._fastest_read[size] = max(*reads, self._fastest_read.get(size, 0.0))
        grants = self._kernels.grants()
        for isa in (name for name in PEAK_ISAS if grants.get(name) == ""):
            peaks = [self.peak_flops(isa, dtype, _WINDOW_S) for dtype in PEAK_DTYPES for _ in range(_WINDOWS)]
            self._fastest_peak = max(*peaks, self._fastest_peak)

    def read_bytes_per_s(self) -> float:
        """Bytes per second that all threads read from memory together, each for 10 ms.

        A buffer that was idle for more than a second is read once before that.
        """
        if perf_counter() - self._read_at_s > _IDLE_S:
            self._read.read_once()
        rate = float(self._read.sample(_READ_S))
        self._read_at_s = perf_counter()
        return rate

    def peak_flops(self, isa: str, dtype: str, seconds: float = _PEAK_S) -> float:
        """FLOP/s (for int8 OP/s) from registers alone, all threads together; for one of PEAK_ISAS and PEAK_DTYPES."""
        return float(self._kernels.peak_flops(self._team, isa, seconds, dtype=dtype))

    def ping_pong_ns(self) -> float:
        """Nanoseconds that a cache line takes between the first two cores, one way. Raises ValueError with one core."""
        return ping_pong_ns(self._kernels, self._team)


def ping_pong_ns(kernels: ModuleType, team: Any) -> float:
    """Nanoseconds that a cache line takes between the team's first two cores, one way; takes about 1 ms.

    Raises ValueError for a team of one.
    """
    # The minimum: other work on these cores can only make it longer.
    return min(float(kernels.ping_pong_ns(team)) for _ in range(_HOP_TRIES))


def core_to_core_ns(kernels: ModuleType, cpus: Sequence[int]) -> float | None:
    """`ping_pong_ns` of the first two of `cpus`, on threads opened for it; None for a single cpu."""
    return ping_pong_ns(kernels, pinned_team(kernels, cpus[:2])) if len(cpus) > 1 else None


def best_isa(grants: Mapping[str, str]) -> str:
    """The fastest granted instruction set, `reference` if none of PEAK_ISAS is granted."""
    return next((isa for isa in PEAK_ISAS if grants.get(isa) == ""), "reference")


def pinned_team(kernels: ModuleType, cpus: Sequence[int], spin_us: int = _SPIN_US) -> Any:
    """One of the extension's own threads on each of `cpus`, awake for `spin_us` after its work.

    Raises ValueError if `cpus` is empty or includes one that the calling thread may not use.
    """
    return kernels.ThreadPool(list(cpus), spin_us)


def bind_openmp(cpus: Sequence[int]) -> None:
    """Binds each OpenMP thread to one of `cpus`, the calling one to the first, for the rest of the process.

    Call it before PyTorch is imported, when OpenMP reads the setting; later it raises RuntimeError unless the threads
    have these cpus already. Pinning the threads ourselves does not last: a smaller team, as oneDNN requests for a small
    product, ends the other threads, and those that replace them inherit the single cpu of the thread that starts them.
    """
    wanted = {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus)}
    if "torch" in sys.modules and not wanted.items() <= os.environ.items():
        raise RuntimeError("PyTorch was imported before its threads were given their cpus")
    os.environ |= wanted


def open_roofs(cpus: Sequence[int]) -> Roofs:
    """Roofs of the threads that do the work: PyTorch's, one on each of `cpus`.

    PyTorch must be loaded already, after `bind_openmp`. Separate threads would be slowed by PyTorch's, which spin for a
    while after their work. Raises RuntimeError without the extension or PyTorch's threads.
    """
    kernels = _require_extension()
    return Roofs(kernels.OpenMPTeam(len(cpus)), kernels)


def open_pool_roofs(cpus: Sequence[int], rest_s: float = 0.0) -> Roofs:
    """Roofs of all `cpus` together, for work on threads that are not PyTorch's or have separate cores.

    The pool sleeps between samples, so that it takes no time from that work; a sample first waits `rest_s` seconds for
    threads that spin before they sleep. Raises RuntimeError without the extension, and ValueError like `pinned_team`.
    """
    kernels = _require_extension()
    return Roofs(pinned_team(kernels, cpus, spin_us=0), kernels, prepare=partial(sleep, rest_s))


def _require_extension() -> ModuleType:
    extension = load_extension()
    if extension.module is None:
        raise RuntimeError(extension.reason)
    return extension.module
