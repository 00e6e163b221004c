"""Fused MoE kernels for the CPU, and the roofs they run against. bf16 travels as uint16."""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

def build_id() -> str:
    """SHA-256 over the kernel sources, the compiler and its flags, in hexadecimal."""

class Format(TypedDict):
    """How a precision stores weights."""

    bits: int
    scales: str
    """none; row; group (an int8 factor of the row's scale for each group); block (a half for each GGUF block)."""
    group: int
    """Weights along k that share a scale; 0: the whole row, or none."""
    scale_bytes: int
    """Of one group."""
    row_bytes: int
    """Of the scales and offsets of one output row."""
    block_bytes: int
    """Of one GGUF block, its scale and its numbers; 0 without blocks."""
    depth_multiple: int
    """What k is padded to."""
    activation: str
    """bf16, or int8: quantised symmetrically per token."""
    isas: list[str]
    """The instruction sets with kernels for it, granted or not."""

class Isa(TypedDict):
    """An instruction set that has kernels."""

    feature: str | None
    """The engine's toggle that runs it, and the name of its roof in `peak_flops`; None: neither."""
    parent: str | None
    """The instruction set that it extends."""
    counter: str
    """What its MoE kernels count."""
    peaks: list[str]
    """The dtypes with a loop for `peak_flops`."""

def guard_pages(address: int, nbytes: int) -> None:
    """From now on a write to these whole pages ends the process with exit code 1 and a line on stderr.

    Raises ValueError for what is not whole pages, OSError where the kernel refuses.
    """

def formats() -> dict[str, Format]:
    """Precision to its row of the format table (kernels/core/formats.h), in its order."""

def isas() -> dict[str, Isa]:
    """Name to the row of the table of instruction sets (kernels/runtime/isa.cpp), slower ones first."""

def grants() -> dict[str, str]:
    """ISA name to "" when this machine grants it, else the reason in one line."""

def isa_of(feature: str, precision: str) -> str:
    """The instruction set that a feature of the engine runs: the fastest granted one with kernels for the precision.

    ValueError where there are none for it, RuntimeError with the reason where the machine grants none.
    """

def crossovers() -> dict[tuple[str, str], tuple[int, int]]:
    """By granted instruction set and precision: from how many tokens per expert on other loops run.

    Streams prefetch from the first on, register blocks multiply from the second on; of amx the second is where its
    tiles are faster than vectors. They are those that ship for the CPU until `set_crossover` replaces them.
    """

def set_crossover(isa: str, precision: str, fetch_from: int, block_from: int) -> None:
    """Replace a crossover, for calls that begin later.

    ValueError for numbers below 1 and a precision without such kernels, RuntimeError where the isa is not granted.
    """

class Team:
    """Threads that run jobs, one after the other in the order of their submission, each on all threads together."""

    @property
    def threads(self) -> int: ...
    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which a job was running, from begin to end, summed over the jobs done since construction."""

    def spans(self) -> NDArray[np.int64]:
        """[n, 3]: tag, begin and end of the jobs done since the last call, oldest first; at most the last 65,536.

        Nanoseconds of the clock of `time.perf_counter_ns`: when the job's first thread began it, and when the last one
        was done. The tag is the MoE's, -1 for other jobs. A job is listed before its waiter returns.
        """

class OpenMPTeam(Team):
    """The OpenMP threads that this process already has (PyTorch's). RuntimeError where it has none yet.

    For threads that share their cores with PyTorch's own work: no second set of threads spins against the first.
    """

    def __init__(self, threads: int) -> None: ...

class ThreadPool(Team):
    """One pinned thread per entry of `cpus`, which spins `spin_us` and then parks.

    The calling thread works as the first; with `own` the pool has a thread for that, too, and callers only wait.
    """

    def __init__(self, cpus: Sequence[int], spin_us: int, own: bool = False) -> None: ...
    @property
    def cpus(self) -> list[int]: ...

class PackedExperts:
    """The weights of one MoE layer, packed for every ISA alike, written expert by expert.

    `precision` is one of `formats()`: bf16; int8, symmetric per output row; int4_g*, symmetric in groups along k; q8_0,
    q4_0, the numbers of GGUF's blocks of those names (ggml-common.h).
    With `domains` every expert is split: gate and up by rows, down by columns; `nodes` names a NUMA node for each of
    them, by default memory lies near the thread that writes it.

    An expert computes down(act(g) * (u + offset)) + down_bias with g = min(gate(x) + gate_bias, limit) and
    u = clamp(up(x) + up_bias, -limit, limit); a limit of None cuts off nothing. `activation` is silu,
    g * sigmoid(alpha * g), where gpt-oss has an alpha of 1.702, or gelu_tanh,
    0.5 * g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3))). With `biases` every expert has its own, in float32.

    ValueError for a size, a precision, an activation, a number that it cannot have, sizes that are no multiples of 32
    for q8_0 and q4_0, or beyond 131,072 for int8 and int4_g*, whose sums have 32 bits, or more domains than the
    intermediate size has room for (their parts are multiples of 32 for bf16, of a group and of 64 for the others);
    OSError where the kernel refuses the requested placement.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        precision: str = "bf16",
        domains: int = 1,
        nodes: Sequence[int] | None = None,
        *,
        activation: str = "silu",
        alpha: float = 1.0,
        limit: float | None = None,
        offset: float = 0.0,
        biases: bool = False,
        down_precision: str | None = None,
    ) -> None: ...
    @staticmethod
    def map(path: str) -> PackedExperts:
        """Experts in a file that `save` wrote, shared with every process that maps it; they cannot be written.

        OSError for what the system refuses, RuntimeError for a file that is none or of another version.
        """

    def save(self, path: str) -> None:
        """Write all experts to a file. ValueError where they are split over domains."""

    file_version: int  # of what `save` writes; `map` takes no other

    @property
    def experts(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def down_precision(self) -> str: ...
    @property
    def domains(self) -> int: ...
    @property
    def activation(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def offset(self) -> float: ...
    @property
    def biases(self) -> bool: ...
    @property
    def nbytes(self) -> int:
        """Of the packed weights, with their biases."""

    def write_expert(
        self,
        index: int,
        gate: NDArray[np.uint16],
        up: NDArray[np.uint16],
        down: NDArray[np.uint16],
        team: Team | None = None,
        *,
        gate_bias: NDArray[np.float32] | None = None,
        up_bias: NDArray[np.float32] | None = None,
        down_bias: NDArray[np.float32] | None = None,
    ) -> None:
        """gate, up [intermediate, hidden], down [hidden, intermediate]; rows may lie apart. Pass the MoE's own team.

        The biases [intermediate], [intermediate], [hidden] of experts that have them, all three: ValueError otherwise.
        q8_0 and q4_0 are quantised as ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref do, bit for bit; a block
        with a NaN or an infinity becomes NaN.
        """

    def write_expert_blocks(
        self,
        index: int,
        gate: NDArray[np.uint8],
        up: NDArray[np.uint8],
        down: NDArray[np.uint8],
        team: Team | None = None,
        *,
        gate_bias: NDArray[np.float32] | None = None,
        up_bias: NDArray[np.float32] | None = None,
        down_bias: NDArray[np.float32] | None = None,
    ) -> None:
        """The same from GGUF's blocks as they lie in a file: nothing is quantised again.

        gate, up [intermediate, hidden / 32 * n], down [hidden, intermediate / 32 * n] with n = 34 bytes for q8_0, 18
        for q4_0; rows may lie apart. TypeError for a dtype, ValueError for a shape or experts of another precision.
        """

    def read_expert(
        self, index: int, team: Team | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """gate, up, down as they are stored: bf16, or integers times their scales, exact for q8_0 and q4_0."""

    def multiply_expert(
        self, index: int, matrix: str, inputs: NDArray[np.float32], team: Team | None = None
    ) -> NDArray[np.float32]:
        """Products [T, N] of `inputs` [T, K] with the rows of gate, up or down as `read_expert` gives them, in float32.

        By code that no timed kernel shares. TypeError for a dtype, ValueError for a shape or an unknown matrix.
        """

    def read_biases(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """gate_bias, up_bias, down_bias. ValueError for experts without biases."""

    def memory(self) -> NDArray[np.uint8]:
        """The packed experts [E, bytes of one] as they lie (kernels/core/layout.h), read-only.

        ValueError for experts that are split over domains.
        """

    def copy_expert(self, index: int, source: PackedExperts, source_index: int, team: Team | None = None) -> None:
        """Expert `source_index` of `source` as it is packed: nothing is quantised again. Pass the MoE's own team.

        ValueError naming what differs between the sets, where that is more than their number of experts; IndexError for
        an expert that is not there; RuntimeError where this set is a file's.
        """

    def placement(self) -> list[dict[int, int]]:
        """For each domain its bytes by NUMA node, as the kernel answers; pages not yet touched are not counted."""

class Ticket:
    """A submitted call, which keeps its arrays alive. Dropping it waits."""

    def wait(self) -> None:
        """Return when the output is written, whatever was submitted later.

        Raises once what a thread of the team raised.
        """

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once. Teams that work only while a caller waits get nothing done before."""

class Prepared:
    """One call, its arrays and options checked once, made again and again on whatever the arrays hold then.

    At most one is outstanding: submitted and not waited for. Dropping this waits.
    """

    def forward(self) -> None:
        """`submit` and `wait`."""

    def submit(self) -> None:
        """Routing is read before it returns. RuntimeError while a call is outstanding, IndexError for an expert id."""

    def wait(self) -> None:
        """Return when the output is written, at once where nothing is outstanding. Raises as `Ticket.wait` does."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""

class HostCall:
    """One call that C functions make through a `HandOver`, on whatever its arrays hold then."""

    def check(self) -> None:
        """Raise the first error since the last check: C functions have no way to."""

class HandOver:
    """What a layer hands to the host, as C functions `void (*)(void *)` for `cudaLaunchHostFunc`, again and again.

    `submit(data)` begins `immediate` and `deferred`; `wait(data)` waits for `immediate` and, of the layer before,
    `previous`, whose output it adds to that of `immediate`. ValueError where the two outputs differ in size.
    """

    def __init__(
        self, immediate: HostCall, deferred: HostCall | None = None, previous: HostCall | None = None
    ) -> None: ...
    @property
    def submit(self) -> int:
        """Address of the function that submits."""

    @property
    def wait(self) -> int:
        """Address of the function that waits."""

    @property
    def data(self) -> int:
        """Address to pass to both; valid while this object lives."""

class HandOverFlags:
    """A thread that makes hand-overs which a device asks for by words of memory, int32 [2, slots].

    The first row has asks, the second answers. To ask, the device writes 0 to the answer of a slot and BEGIN_AND_END to
    its ask; the thread submits, waits and writes 1 to the answer. END_ALONE waits for what was submitted before. The
    thread runs where the calling one may. Where a hand-over takes longer than `limit_s` seconds, it and all later asks
    are answered with nothing done. ValueError for words or a limit of another kind.
    """

    BEGIN_AND_END: int
    END_ALONE: int
    def __init__(self, words: NDArray[np.int32], limit_s: float) -> None: ...
    def add(self, hand_over: HandOver) -> int:
        """The slot of a hand-over, which is kept. Its team must have all threads of its own (`ThreadPool(own=True)`).

        ValueError where all slots are taken.
        """

    def remove(self, slot: int) -> None:
        """The slot is free again; nothing may be asked of it. IndexError where none was added."""

    def check(self) -> None:
        """RuntimeError once a hand-over has taken longer than the limit."""

    @property
    def answered(self) -> int:
        """Hand-overs that were made."""

class ExpertProducts:
    """Products of rows that are grouped by expert with packed matrices, and with their transposed, for training.

    Slot s multiplies row `row[s]` by the matrices of its expert; expert e has slots first[e] to first[e + 1] - 1. Other
    options as `MoE.forward`, transposed products run on AVX-512 where AMX is asked for. ValueError, TypeError and
    IndexError for arguments that do not fit. `matrices` are gate_up, [2 I, H] with gate's rows first, or down, [H, I].
    """

    def __init__(self, weights: PackedExperts, team: Team, tag: int = 0) -> None: ...
    def forward(
        self,
        matrices: str,
        rows: NDArray[np.uint16],
        row: NDArray[np.int32],
        first: NDArray[np.int32],
        out: NDArray[np.float32],
        *,
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
        isa: str | None = None,
        dynamic: bool = False,
        numa: bool = False,
    ) -> None:
        """Write out [P, S, 2 I] or [P, S, H], whose sum over P is W x, of rows [R, H] or [R, I] in bf16.

        P is the number of domains for down, 1 for gate_up.
        """

    def transposed(
        self,
        matrices: str,
        rows: NDArray[np.float32],
        row: NDArray[np.int32],
        first: NDArray[np.int32],
        out: NDArray[np.float32],
        *,
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
        isa: str | None = None,
        dynamic: bool = False,
        numa: bool = False,
    ) -> None:
        """Write out [P, S, H] or [P, S, I], whose sum over P is W^T y, of rows [R, 2 I] or [R, H] in float32.

        P is the number of domains for gate_up, 1 for down.
        """

    def counters(self) -> dict[str, int]:
        """As `MoE.counters`."""

class MoE:
    """The fused operator on one team. Safe to call from several Python threads; calls of a team run one by one.

    `tag` names its jobs in `Team.spans`; ValueError for a negative one.
    """

    def __init__(self, weights: PackedExperts, team: Team, tag: int = 0) -> None: ...
    def forward(
        self,
        hidden: NDArray[np.uint16],
        ids: NDArray[np.int64],
        gates: NDArray[np.float32],
        out: NDArray[np.uint16],
        *,
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
        isa: str | None = None,
        dynamic: bool = False,
        numa: bool = False,
    ) -> None:
        """Write out [T, hidden] = sum over k of gates * expert(hidden); hidden [T, hidden], ids and gates [T, k].

        An id of -1 stands for no expert: its slot adds nothing, and a token without any expert gets zeros.
        `avx512` and `amx` together: AMX for experts with at least `amx_min_tokens` tokens, by default from its
        crossover on, and AVX-512 for the others.
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
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
        isa: str | None = None,
        dynamic: bool = False,
        numa: bool = False,
    ) -> Ticket:
        """`forward` without waiting. Routing is read before it returns, `hidden` while the call runs."""

    def prepare(
        self,
        hidden: NDArray[np.uint16],
        ids: NDArray[np.int64],
        gates: NDArray[np.float32],
        out: NDArray[np.uint16],
        *,
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
        isa: str | None = None,
        dynamic: bool = False,
        numa: bool = False,
    ) -> Prepared:
        """The same call, to be made many times: its arrays are read anew each time."""

    def host_call(
        self,
        hidden: NDArray[np.uint16],
        ids: NDArray[np.int64],
        gates: NDArray[np.float32],
        out: NDArray[np.uint16],
        *,
        avx2: bool = False,
        avx512: bool = False,
        amx: bool = False,
        amx_min_tokens: int | None = None,
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

    `isa`: avx2, avx512, amx. `dtype`: bf16 (as float32 where that is all there is, or faster) or int8. ValueError for
    another, or for `seconds` that are not in 0..60.
    """

def ping_pong_ns(team: Team) -> float:
    """Nanoseconds for a cache line to pass between the team's first two threads, one way."""

class PackedMatrix:
    """The weight [rows, columns] of a linear layer, packed for every ISA alike; zeros until it is written.

    `precision` as for PackedExperts. ValueError for a size or a precision, or for columns that are no multiple of 32
    for q8_0 and q4_0, or more than 131,072 for int8 and int4_g*.
    """

    def __init__(self, rows: int, columns: int, precision: str = "bf16") -> None: ...
    @staticmethod
    def map(path: str) -> PackedMatrix:
        """A matrix in a file that `save` wrote, as `PackedExperts.map`."""

    def save(self, path: str) -> None:
        """Write it to a file."""

    file_version: int

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def write(self, weight: NDArray[np.uint16], first_row: int = 0, team: Team | None = None) -> None:
        """Rows [first_row, first_row + n) from weight [n, columns]; rows may lie apart. Pass the Linear's own team.

        They begin at a multiple of 16 and end before one or with the matrix, so that matrices whose rows are multiples
        of 16 may be written one after the other into one. ValueError for other rows.
        """

    def write_blocks(self, blocks: NDArray[np.uint8], first_row: int = 0, team: Team | None = None) -> None:
        """The same from GGUF's blocks [n, columns / 32 * 34 (q8_0) or 18 (q4_0)] as they lie in a file."""

    def read(self, team: Team | None = None) -> NDArray[np.float32]:
        """The weight as it is stored: bf16, or integers times their scales."""

class Linear:
    """y = x W^T + bias on one team, float32 sums rounded once. Linears of a team share their working memory.

    Quantised weights meet activations quantised to int8 per token. Safe to call from several Python threads; calls
    of a team run one by one. `bias` [rows].
    """

    def __init__(self, weights: PackedMatrix, team: Team, bias: NDArray[np.float32] | None = None) -> None: ...
    def forward(self, x: NDArray[np.uint16], out: NDArray[np.uint16], *, isa: str | None = None) -> None:
        """Write out [T, rows] from x [T, columns], both contiguous and without memory in common.

        By default on the fastest ISA granted for so many tokens: AMX from 5 up where it has kernels for the precision,
        else the fastest AVX-512 variant, AVX2, reference. RuntimeError with the reason when `isa` is not granted,
        TypeError for a dtype, ValueError for a shape.
        """

    def counters(self) -> dict[str, int]:
        """What has happened since construction, summed over threads.

        linear_calls, reference_calls, avx2_calls, avx512_calls, amx_tiles, emulated_tiles, weight_bytes, flops.
        """

def rms_norm(
    x: NDArray[np.uint16],
    weight: NDArray[np.uint16],
    out: NDArray[np.uint16],
    eps: float,
    *,
    offset: float = 0.0,
    team: Team | None = None,
    isa: str | None = None,
) -> None:
    """Write out [T, H] = x [T, H] / sqrt(mean(x^2) + eps) times weight [H]; rows may lie apart, out may be x.

    Roundings are those of Transformers: y in float32; without an offset bf16(weight * bf16(y)) as in LlamaRMSNorm,
    otherwise bf16(y * (offset + weight)) as in GemmaRMSNorm and Qwen3NextRMSNorm with 1. A team shares many rows.
    `isa`: reference, avx2 or avx512, by default the fastest granted. TypeError for a dtype, ValueError for a shape.
    """

def prepare_heads(
    qkv: NDArray[np.uint16],
    q_norm: NDArray[np.uint16] | None,
    k_norm: NDArray[np.uint16] | None,
    eps: float,
    cos: NDArray[np.uint16],
    sin: NDArray[np.uint16],
    position: NDArray[np.int64],
    q_out: NDArray[np.uint16],
    keys: NDArray[np.uint16],
    values: NDArray[np.uint16],
    *,
    page: NDArray[np.int64] | None = None,
    offset: float = 0.0,
    team: Team | None = None,
    isa: str | None = None,
) -> None:
    """From projections to attention for one token of each of B sequences.

    qkv [B, (Hq + 2 Hkv) * D], rows may lie apart: q, k and v heads one after the other. q and k heads are normalised
    as by `rms_norm` where q_norm, k_norm [D] are given. Their first R numbers are rotated by cos, sin [B, R] in the
    form of rotate_half, every product and the sum rounded to bf16 as Transformers' apply_rotary_pos_emb does. Writes
    q_out [B, Hq, D], contiguous, and keys, values [B, Hkv, N, D] at `position` [B], with `page` [B] of keys, values
    [P, Hkv, N, D] in those pages. TypeError for a dtype, ValueError for a shape, IndexError for a position or page out
    of range.
    """

def multiply_heads(
    x: NDArray[np.uint16],
    weights: NDArray[np.uint16],
    out: NDArray[np.uint16],
    team: Team,
    *,
    transposed: bool = False,
    isa: str | None = None,
) -> None:
    """Write out [B, H, M] = weights [H, M, N] · x [B, H, N], or transposed out [B, H, N] = weightsᵀ · x [B, H, M].

    All bf16 as uint16, sums in float32; all may be strided but along the last axis. `isa`: see `DecodeAttention`.
    TypeError for a dtype, ValueError for a shape.
    """

class DecodeAttention:
    """Attention of a decode step, one query token per sequence over a static cache, on one team."""

    def __init__(self, team: Team) -> None: ...
    def forward(
        self,
        q: NDArray[np.uint16],
        keys: NDArray[np.uint16],
        values: NDArray[np.uint16],
        first: NDArray[np.int64],
        length: NDArray[np.int64],
        out: NDArray[np.uint16],
        *,
        scale: float,
        sinks: NDArray[np.float32] | None = None,
        isa: str | None = None,
    ) -> None:
        """Write out [B, Hq, Dv] = softmax(scale * q keys^T) values over positions first[b] <= p < length[b].

        q [B, Hq, D], keys [B, Hkv, N, D], values [B, Hkv, N, Dv], Hq a multiple of Hkv; all may be strided but along
        the last axis. Scores, softmax and sums are float32. `sinks` [Hq]: one more score of each head's that has no
        value, as in gpt-oss. A sequence without positions gets zeros. `isa`: reference, avx2, avx512 or avx512_bf16,
        which rounds the softmax to bf16 as Transformers does; by default the fastest granted. TypeError for a dtype,
        ValueError for a shape, IndexError for first or length out of range.
        """

class PagedAttention:
    """Attention of the tokens of a step over keys and values in pages, on one team."""

    def __init__(self, team: Team) -> None: ...
    def forward(
        self,
        q: NDArray[np.uint16],
        keys: NDArray[np.uint16],
        values: NDArray[np.uint16],
        tables: NDArray[np.int64],
        sequence: NDArray[np.int64],
        position: NDArray[np.int64],
        out: NDArray[np.uint16],
        *,
        scale: float,
        window: int | None = None,
        sinks: NDArray[np.float32] | None = None,
        isa: str | None = None,
    ) -> None:
        """Write out [T, Hq, Dv] = softmax(scale * q keys^T) values over positions up to each token's, its own included.

        q [T, Hq, D], keys [P, Hkv, page, D], values [P, Hkv, page, Dv]; position p of sequence s lies in page
        tables[s, p // page]. Token t is at position[t] of sequence[t] and attends to the last `window` positions (None:
        to all); at -1 to none, which gives zeros. Neighbours of one sequence share what they load. Numerics, `sinks`,
        `isa` and errors: see `DecodeAttention`.
        """

def write_pages(
    x: NDArray[np.uint16], page: NDArray[np.int64], offset: NDArray[np.int64], cache: NDArray[np.uint16]
) -> None:
    """Write x [T, H, D] to cache [P, H, page, D]: token t at offset[t] of page[t].

    TypeError for a dtype, ValueError for a shape, IndexError for a page or an offset that is not there.
    """

class SmallCall:
    """One small operation of a decode step on one thread, its arrays checked once: contiguous, bf16 as uint16.

    What makes one raises TypeError for a dtype, ValueError for a shape.
    """

    @staticmethod
    def add(a: NDArray[np.uint16], b: NDArray[np.uint16], out: NDArray[np.uint16]) -> SmallCall:
        """Writes `out` = a + b, all of one shape, rounded to nearest even; `out` may be one of them."""

    @staticmethod
    def take_rows(table: NDArray[Any], ids: NDArray[np.int64], out: NDArray[Any]) -> SmallCall:
        """Writes `out` [T, W] = table [N, W] at `ids` [T], in any type. IndexError at `forward` for another id."""

    @staticmethod
    def select_experts(
        logits: NDArray[np.uint16],
        ids: NDArray[np.int64],
        weights: NDArray[np.uint16] | NDArray[np.float32],
        *,
        renormalised: bool,
    ) -> SmallCall:
        """Writes the k largest of softmax(logits [T, E]) to `weights` [T, k], and whose they are to `ids` [T, k].

        In descending order, of equal logits the lower id first, in float32; `renormalised`: divided by their sum. Then
        weights in uint16 are rounded to bf16. That is what Transformers' Qwen3MoeTopKRouter and MixtralTopKRouter do.
        A token with a NaN or infinity among its logits gets weights of NaN, except for those of -infinity, whose
        weight is 0. ValueError for a k that is not in 1..E, or for more than 65,536 experts.
        """

    def forward(self) -> None:
        """Do it on whatever the arrays hold now."""
