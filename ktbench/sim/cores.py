"""What cores take: tasks dealt to threads as the real kernels deal them, and our packed products and PyTorch's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from ktbench.resources import cache_folder
from ktbench.sim.calibration import Calibration
from ktbench.spec.step.work import F32_BYTES
from ktbench.spec.weights import FORMATS, Dtype, Precision

Seconds = NDArray[np.float64]
Makespan = Callable[[Seconds, int, int], float]

# Tasks that plain Python deals in the time that numba takes to load, 0.9 s: from then on queues are compiled.
_COMPILED_FROM = 6_000_000


def dynamic_s(expert_s: Seconds, tasks: int, threads: int) -> float:
    """Makespan in seconds of a queue: each thread takes the next task as soon as it is free.

    `expert_s` [E] are seconds of one thread for all `tasks` of each expert, which are alike and queued in the order of
    experts (KTransformers, section 3.2; its artifact counts up one atomic number, a task at a time).
    """
    free = [0.0] * threads  # a heap of the times at which threads are free
    for expert in range(len(expert_s)):
        task_s = float(expert_s[expert]) / tasks
        for _ in range(tasks):
            heapreplace(free, free[0] + task_s)
    return max(free)


def static_s(expert_s: Seconds, tasks: int, threads: int) -> float:
    """Makespan in seconds where each thread has one contiguous share of equally many tasks, as with +d off."""
    seconds: list[float] = expert_s.tolist()
    total = len(seconds) * tasks
    longest, done = 0.0, 0
    for thread in range(threads):
        end, busy = total * (thread + 1) // threads, 0.0
        while done < end:
            expert = done // tasks
            mine = min(end, (expert + 1) * tasks) - done
            busy += mine * seconds[expert] / tasks
            done += mine
        longest = max(longest, busy)
    return longest


class _Queues:
    """`dynamic_s`: in plain Python for as long as loading numba would take longer, as in most commands."""

    def __init__(self) -> None:
        self._dealt = 0

    def __call__(self, expert_s: Seconds, tasks: int, threads: int) -> float:
        self._dealt += len(expert_s) * tasks
        makespan = compiled(dynamic_s) if self._dealt > _COMPILED_FROM else dynamic_s
        return float(makespan(expert_s, tasks, threads))


_queues = _Queues()


@cache
def compiled(makespan: Makespan) -> Makespan:
    """The same, compiled by numba, which keeps what it compiled in our cache folder where that can be written."""
    from numba import config, njit

    folder = cache_folder() / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK)
    except OSError:
        is_writable = False
    config.CACHE_DIR = str(folder) if is_writable else ""  # type: ignore[attr-defined]
    kept: Makespan = njit(cache=is_writable)(makespan)
    try:
        kept(np.zeros(1), 1, 1)  # compiles and writes now: a full disk or a quota is seen here alone
    except OSError:
        unkept: Makespan = njit(cache=False)(makespan)
        return unkept
    return kept


def makespan_s(expert_s: Seconds, tasks: int, threads: int, *, dynamic: bool) -> float:
    """`dynamic_s`, or `static_s` with +d off."""
    return (_queues if dynamic else static_s)(expert_s, tasks, threads)


def soft_maximum(reading: float, computing: Seconds, overlap: float) -> Seconds:
    """The norm of both times: their sum at an overlap of 1, the larger of them from large ones on."""
    seconds: Seconds = (reading**overlap + computing**overlap) ** (1 / overlap)
    return seconds


VECTOR, AMX = "vector", "amx"


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """`cores` that work together: read bandwidth in bytes/s, arithmetic peaks in operations/s by unit and dtype.

    `f32_flops_per_s` is the peak of the vector units in float32.
    """

    cores: int
    read_bytes_per_s: float
    peaks: Mapping[tuple[str, Dtype], float]
    f32_flops_per_s: float

    @property
    def torch_unit(self) -> str:
        """The unit that PyTorch (oneDNN) multiplies bf16 on: AMX where there is any."""
        return AMX if (AMX, "bf16") in self.peaks else VECTOR

    def peak(self, unit: str, dtype: Dtype) -> float:
        """Operations/s. Raises ValueError for a unit that the machine lacks."""
        if (unit, dtype) not in self.peaks:
            raise ValueError(f"the machine has no {unit.upper()} peak for {dtype}")
        return self.peaks[unit, dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreKernels:
    """Products by a team of cores. Rows are [N] numbers above 0, one for each set of weights, and so are seconds."""

    calibration: Calibration
    team: Team

    def packed_s(
        self, precision: Precision, params: int, nbytes: float, rows: NDArray[np.int64], first_on_amx: float
    ) -> Seconds:
        """Our kernels on packed weights; on AMX from so many rows on."""
        on_amx = rows >= first_on_amx
        seconds = np.zeros(len(rows))
        for unit, on_it in ((AMX, on_amx), (VECTOR, ~on_amx)):
            if on_it.any():
                seconds[on_it] = self._on_unit(unit, precision, params, nbytes, rows[on_it])
        return seconds

    def _on_unit(self, unit: str, precision: Precision, params: int, nbytes: float, rows: NDArray[np.int64]) -> Seconds:
        """Reading and arithmetic overlap in part."""
        cost, team = self.calibration, self.team
        dtype: Dtype = FORMATS[precision].multiplied_as(unit)
        multiplying = 2 * params * rows / (team.peak(unit, dtype) * cost[f"{unit}_{dtype}_peak"])
        return soft_maximum(
            self._reading_s(unit, precision, params, nbytes), multiplying, cost[f"{unit}_{dtype}_overlap"]
        )

    def _reading_s(self, unit: str, precision: Precision, params: int, nbytes: float) -> float:
        """4-bit weights are unpacked once, whatever the number of rows."""
        cost, team = self.calibration, self.team
        reading = nbytes / (team.read_bytes_per_s * cost[f"{unit}_read"])
        packed = FORMATS[precision].bits == 4
        return reading + (params / (team.cores * cost[f"{unit}_unpacks_g_per_s"] * 1e9) if packed else 0.0)

    def transposed_s(self, precision: Precision, params: int, nbytes: float, rows: NDArray[np.int64]) -> Seconds:
        """Our kernels on the transposed of packed weights: in float32 on vector units (kernels/training/transposed.h).

        No constant is fitted to them: they come as close to their peak as the others on vector units in bf16.
        """
        cost = self.calibration
        multiplying = 2 * params * rows / (self.team.f32_flops_per_s * cost["vector_bf16_peak"])
        reading = self._reading_s(VECTOR, precision, params, nbytes)
        return soft_maximum(reading, multiplying, cost["vector_bf16_overlap"])

    def torch_s(self, params: int, nbytes: float, rows: NDArray[np.int64]) -> Seconds:
        """PyTorch's linear layers (oneDNN) on bf16 weights."""
        cost, team = self.calibration, self.team
        reading = nbytes / (team.read_bytes_per_s * cost["torch_read"])
        rate = team.peak(team.torch_unit, "bf16") * cost[f"torch_{team.torch_unit}_peak"]
        return soft_maximum(reading, 2 * params * rows / rate, cost["torch_overlap"])

    def adapted_s(self, numbers: int, count: int, rows: int) -> float:
        """Of all `rows` with the factors of LoRA on `count` matrices, `numbers` each: by PyTorch in float32."""
        cost, team = self.calibration, self.team
        reading_s = count * numbers * F32_BYTES / (team.read_bytes_per_s * cost["torch_read"])
        return reading_s + 2 * numbers * rows / (team.f32_flops_per_s * cost["torch_vector_peak"])
