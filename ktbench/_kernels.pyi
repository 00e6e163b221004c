"""Fused MoE kernels for the CPU, and the roofs they run against. bf16 travels as uint16."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def build_id() -> str:
    """SHA-256 over the kernel sources, the compiler and its flags, in hexadecimal."""

def grants() -> dict[str, str]:
    """ISA name to "" when this machine grants it, else the reason in one line."""

class Team:
    """Threads that run the phases of an operator together."""

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
    """One pinned thread per entry of `cpus`, which spins `spin_us` and then parks.

    The calling thread works as the first; with `own` the pool has a thread for that, too, and callers only wait.
    """

    def __init__(self, cpus: Sequence[int], spin_us: int, own: bool = False) -> None: ...
    @property
    def cpus(self) -> list[int]: ...

class PackedExperts:
    """The weights of one MoE layer, packed for every ISA alike, written expert by expert.

    `precision`: bf16; int8, symmetric per output row; int4_g32, int4_g64 or int4_g128, symmetric in groups along k.
    With `domains` every expert is split: gate and up by rows, down by columns; `nodes` names a NUMA node for each of
    them, by default memory lies near the thread that writes it. ValueError for a size, a precision or more domains than
    the intermediate size has room for; OSError where the kernel does not place memory as asked.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        precision: str = "bf16",
        domains: int = 1,
        nodes: Sequence[int] | None = None,
    ) -> None: ...
    @staticmethod
    def map(path: str) -> PackedExperts:
        """Experts in a file that `save` wrote, shared with every process that maps it; they cannot be written.

        OSError for what the system refuses, RuntimeError for a file that is none.
        """

    def save(self, path: str) -> None:
        """Write all experts to a file. ValueError where they are split over domains."""

    @property
    def experts(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def domains(self) -> int: ...
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

    def read_expert(
        self, index: int, team: Team | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """gate, up, down as they are stored: bf16, or integers times their scales."""

    def placement(self) -> list[dict[int, int]]:
        """For each domain its bytes by NUMA node, as the kernel answers; pages not yet touched are not counted."""

class Ticket:
    """A submitted call, which keeps its arrays alive. Dropping it waits."""

    def wait(self) -> None:
        """Return when the output is written. Raises once what a thread of the team raised."""

class HostCall:
    """One call as C functions `void (*)(void *)` for `cudaLaunchHostFunc`: submit(data), wait(data), and again."""

    @property
    def submit(self) -> int:
        """Address of the function that submits."""

    @property
    def wait(self) -> int:
        """Address of the function that waits."""

    @property
    def data(self) -> int:
        """Address to pass to both; valid while this object lives."""

    def check(self) -> None:
        """Raise the first error since the last check: C functions have no way to."""

class MoE:
    """The fused operator on one team. Safe to call from several Python threads; calls of a team run one by one."""

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
        numa: bool = False,
    ) -> None:
        """Write out [T, hidden] = sum over k of gates * expert(hidden); hidden [T, hidden], ids and gates [T, k].

        `avx512` and `amx` together: AMX for experts with at least `amx_min_tokens` tokens, AVX-512 for the others.
        `isa` names one ISA outright instead. `numa`: each domain's threads compute its share of the experts, otherwise
        any thread any task. RuntimeError with the reason when an ISA is not granted, TypeError for a dtype, ValueError
        for a shape or an option, IndexError for an expert id out of range.
        """

    def submit(
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
        numa: bool = False,
    ) -> Ticket:
        """`forward` without waiting. Routing is read before it returns, `hidden` while the call runs."""

    def host_call(
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
        numa: bool = False,
    ) -> HostCall:
        """The same call, to be made from C on whatever the arrays hold then."""

    def counters(self) -> dict[str, int]:
        """What has happened since construction, summed over threads.

        reference_calls, avx2_calls, avx512_calls, amx_tiles, emulated_tiles, tasks_static, tasks_dynamic,
        tasks_stolen, weight_bytes, flops, local_bytes (weights read by the threads of their domain under `numa`),
        remote_bytes (by those of another).
        """

class ReadRoof:
    """Read bandwidth from memory: every thread reads on through its own part of a huge-page buffer."""

    def __init__(self, team: Team, nbytes: int) -> None: ...
    def sample(self, nbytes: int) -> float:
        """Bytes per second over the next `nbytes` of the buffer."""

def peak_flops(team: Team, isa: str, seconds: float, *, dtype: str = "bf16") -> float:
    """Operations per second from registers alone, all threads together, by the fastest instruction granted.

    `isa`: avx2, avx512, amx. `dtype`: bf16 (as float32 where that is all there is, or faster) or int8.
    """

def ping_pong_ns(team: Team) -> float:
    """Nanoseconds for a cache line to pass between the team's first two threads, one way."""
