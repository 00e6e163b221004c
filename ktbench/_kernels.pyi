"""Fused MoE kernels for the CPU, and the roofs they run against. bf16 travels as uint16."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def build_id() -> str:
    """SHA-256 over the kernel sources, the compiler and its flags, in hexadecimal."""

def grants() -> dict[str, str]:
    """ISA name to "" when this machine grants it, else the reason in one line."""

class Team:
    """Threads that run the phases of an operator together; the calling thread works as the first."""

    @property
    def threads(self) -> int: ...

class OpenMPTeam(Team):
    """The OpenMP threads that this process already has (PyTorch's). RuntimeError where it has none yet.

    For threads that share their cores with PyTorch's own work: no second set of threads spins against the first.
    """

    def __init__(self, threads: int) -> None: ...
    def pin(self, cpus: Sequence[int]) -> None:
        """Each thread to its cpu, the calling one included, for good. ValueError for a cpu that may not be used."""

class ThreadPool(Team):
    """One pinned thread per entry of `cpus`; the calling thread works as the first. Spins `spin_us`, then parks."""

    def __init__(self, cpus: Sequence[int], spin_us: int) -> None: ...
    @property
    def cpus(self) -> list[int]: ...

class PackedExperts:
    """The weights of one MoE layer, packed for every ISA alike, written expert by expert."""

    def __init__(self, experts: int, hidden: int, intermediate: int) -> None: ...
    @property
    def experts(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def write_expert(
        self,
        index: int,
        gate: NDArray[np.uint16],
        up: NDArray[np.uint16],
        down: NDArray[np.uint16],
        team: Team | None = None,
    ) -> None:
        """gate, up [intermediate, hidden], down [hidden, intermediate]; rows may lie apart. Pass the MoE's own team."""

    def read_expert(self, index: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint16]]:
        """gate, up, down as they were written."""

class MoE:
    """The fused operator on one team. Safe to call from several Python threads: calls take turns."""

    def __init__(self, weights: PackedExperts, team: Team) -> None: ...
    def forward(
        self,
        hidden: NDArray[np.uint16],
        ids: NDArray[np.int64],
        gates: NDArray[np.float32],
        out: NDArray[np.uint16],
        *,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int = 5,
        isa: str | None = None,
        dynamic: bool = False,
    ) -> None:
        """Write out [T, hidden] = sum over k of gates * expert(hidden); hidden [T, hidden], ids and gates [T, k].

        `avx512` and `amx` together: AMX for experts with at least `amx_min_tokens` tokens, AVX-512 for the others.
        `isa` names one ISA outright instead. RuntimeError with the reason when an ISA is not granted, TypeError for
        a dtype, ValueError for a shape or an option, IndexError for an expert id out of range.
        """

    def counters(self) -> dict[str, int]:
        """What has happened since construction, summed over threads.

        reference_calls, avx2_calls, avx512_calls, amx_tiles, emulated_tiles, tasks_static, tasks_dynamic,
        tasks_stolen, weight_bytes, flops.
        """

class ReadRoof:
    """Read bandwidth from memory: every thread reads on through its own part of a huge-page buffer."""

    def __init__(self, team: Team, nbytes: int) -> None: ...
    def sample(self, nbytes: int) -> float:
        """Bytes per second over the next `nbytes` of the buffer."""

def peak_flops(team: Team, isa: str, seconds: float, *, dtype: str = "bf16") -> float:
    """FLOP per second from registers alone, all threads together: avx2 (float32 FMA), avx512, amx."""

def ping_pong_ns(team: Team) -> float:
    """Nanoseconds for a cache line to pass between the team's first two threads, one way."""
