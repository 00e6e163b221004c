"""Random MoE layers as numpy arrays, packed at any precision, and calls of the operator on them."""

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ktbench import _kernels
from tests.kernels.tables import BLOCK, COUNTERS, sizes_of

torch = pytest.importorskip("torch")

Bits = NDArray[np.uint16]
Floats = NDArray[np.float64]
Expert = tuple[Floats, Floats, Floats]  # gate, up [I, H], down [H, I]
Biases = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # gate, up [I], down [H]


@contextmanager
def crossover(isa: str, precision: str, pair: tuple[int, int]) -> Iterator[None]:
    """Other numbers of rows from which on streams prefetch and register blocks multiply, where there are any."""
    before = _kernels.crossovers().get((isa, precision))
    if before is not None:
        _kernels.set_crossover(isa, precision, *pair)
    try:
        yield
    finally:
        if before is not None:
            _kernels.set_crossover(isa, precision, *before)


def to_bf16(x: Floats) -> Bits:
    """Round to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(x: Bits) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def tensor(bits: Bits) -> "torch.Tensor":
    """A copy, as PyTorch's bfloat16."""
    return torch.from_numpy(bits.copy()).view(torch.bfloat16)


def bits_of(t: "torch.Tensor") -> Bits:
    return t.detach().contiguous().view(torch.uint16).numpy()


def random_bits(rng: np.random.Generator, *shape: int) -> Bits:
    return to_bf16(rng.standard_normal(shape))


def weights_of(kind: str, rng: np.random.Generator, rows: int, columns: int) -> Bits:
    """Weights that are hard to quantise: a kind of KINDS or OF_BLOCKS."""
    w = rng.standard_normal((rows, columns))
    match kind:
        case "subnormal":
            w *= 1e-38  # in float32
        case "tiny":
            w *= 1e-35  # half scales of zero
        case "subnormal scales":
            w *= 1e-5
        case "huge":
            w *= 1e30  # beyond half precision
        case "outlier":
            w[np.arange(rows), rng.integers(0, columns, rows)] = 1000
        case "zeros":
            w[rng.random(rows) < 0.5] = 0
        case "one sign":
            w = np.abs(w)
        case "ties":  # scales of 1: every other number lies between two steps
            w = rng.integers(-15, 16, (rows, columns)) / 2
            w[:, ::BLOCK] = rng.choice([-127.0, 127.0, -8.0, 8.0], (rows, 1))
    return to_bf16(w)


KINDS = ("gaussian", "subnormal", "huge", "outlier", "zeros", "one sign")
OF_BLOCKS = ("gaussian", "tiny", "subnormal scales", "huge", "outlier", "zeros", "one sign", "ties")


def expert_of(kind: str, rng: np.random.Generator, hidden: int, intermediate: int) -> list[Bits]:
    """gate, up [I, H], down [H, I]."""
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    return [weights_of(kind, rng, *shape) for shape in shapes]


@dataclass(frozen=True)
class Glu:
    """act(min(gate, limit)) * (clip(up, -limit, limit) + offset)."""

    activation: str = "silu"
    alpha: float = 1.0
    limit: float | None = None
    offset: float = 0.0

    @property
    def bound(self) -> float:
        return np.inf if self.limit is None else self.limit

    def act(self, g: Floats) -> Floats:
        if self.activation == "gelu_tanh":
            return 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        return g / (1 + np.exp(-np.clip(self.alpha * g, -700, None)))


# The limits cut off a third of what standard normal gates and ups are.
PLAIN, GPT_OSS = Glu(), Glu(alpha=1.702, limit=0.9, offset=1.0)
GLUS = [PLAIN, GPT_OSS, Glu(limit=1.1), Glu("gelu_tanh"), Glu("gelu_tanh", limit=0.8, offset=0.5)]


def named(biases: Biases) -> dict[str, NDArray[np.float32]]:
    """As `write_expert` takes them."""
    return dict(zip(("gate_bias", "up_bias", "down_bias"), biases, strict=True))


@dataclass(frozen=True)
class Layer:
    gate_eih: Bits
    up_eih: Bits
    down_ehi: Bits

    @property
    def experts(self) -> list[Expert]:
        """As they were before packing."""
        return list(zip(widen(self.gate_eih), widen(self.up_eih), widen(self.down_ehi), strict=True))

    def packed(
        self,
        precision: str = "bf16",
        team: _kernels.Team | None = None,
        domains: int = 1,
        glu: Glu = PLAIN,
        biases: Sequence[Biases] = (),
    ) -> _kernels.PackedExperts:
        """No biases at all: experts without."""
        experts, intermediate, hidden = self.gate_eih.shape
        packed = _kernels.PackedExperts(
            experts, hidden, intermediate, precision, domains, **asdict(glu), biases=bool(biases)
        )
        for e in range(experts):
            names = named(biases[e]) if biases else {}
            packed.write_expert(e, self.gate_eih[e], self.up_eih[e], self.down_ehi[e], team, **names)
        return packed


@dataclass(frozen=True)
class Batch:
    x_th: Bits
    ids_tk: NDArray[np.int64]
    gates_tk: NDArray[np.float32]


def stored(packed: _kernels.PackedExperts) -> list[Expert]:
    """The weights that the kernels multiply with."""
    return [read(packed, e) for e in range(packed.experts)]


def read(packed: _kernels.PackedExperts, expert: int) -> Expert:
    gate, up, down = (matrix.astype(np.float64) for matrix in packed.read_expert(expert))
    return gate, up, down


def random_layer(rng: np.random.Generator, experts: int, hidden: int, intermediate: int) -> Layer:
    def matrices(rows: int, columns: int) -> Bits:
        return to_bf16(rng.standard_normal((experts, rows, columns)) / np.sqrt(columns))

    return Layer(matrices(intermediate, hidden), matrices(intermediate, hidden), matrices(hidden, intermediate))


def random_biases(rng: np.random.Generator, layer: Layer) -> list[Biases]:
    experts, intermediate, hidden = layer.gate_eih.shape
    return [
        tuple(rng.standard_normal(n).astype(np.float32) for n in (intermediate, intermediate, hidden))
        for _ in range(experts)
    ]


def random_batch(rng: np.random.Generator, layer: Layer, tokens: int, per_token: int) -> Batch:
    """Ids may repeat within a token."""
    experts, _, hidden = layer.gate_eih.shape
    ids_tk = rng.integers(0, experts, (tokens, per_token))
    return Batch(to_bf16(rng.standard_normal((tokens, hidden))), ids_tk, rng.random((tokens, per_token), np.float32))


def on_one_expert(batch: Batch) -> Batch:
    """All tokens on expert 1."""
    return Batch(batch.x_th, np.full_like(batch.ids_tk, 1), batch.gates_tk)


def forward(moe: _kernels.MoE, batch: Batch, **options: object) -> Bits:
    """The output, which starts as garbage."""
    out_th = garbage(batch)
    moe.forward(batch.x_th, batch.ids_tk, batch.gates_tk, out_th, **options)
    return out_th


def garbage(batch: Batch) -> Bits:
    """NaN wherever nothing is written."""
    return np.full_like(batch.x_th, 0x7FC0)


def submit(moe: _kernels.MoE, batch: Batch, out: Bits, **options: object) -> _kernels.Ticket:
    return moe.submit(batch.x_th, batch.ids_tk, batch.gates_tk, out, **options)


HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Call:
    """A call on arrays of its own by one of the operator's asynchronous forms: submit, prepare or host_call."""

    def __init__(self, form: str, moe: _kernels.MoE, batch: Batch, **options: object) -> None:
        self.form, self.moe, self.options, self.out = form, moe, options, garbage(batch)
        self.batch = Batch(batch.x_th.copy(), batch.ids_tk.copy(), batch.gates_tk.copy())
        self.made = None if form == "submit" else getattr(moe, form)(*self._arrays(), **options)
        self.handed = _kernels.HandOver(self.made) if form == "host_call" else None

    def _arrays(self) -> tuple[NDArray, ...]:
        return self.batch.x_th, self.batch.ids_tk, self.batch.gates_tk, self.out

    def submit(self) -> None:
        if self.form == "submit":
            self.made = self.moe.submit(*self._arrays(), **self.options)
        elif self.form == "prepare":
            self.made.submit()
        else:
            HostFunction(self.handed.submit)(self.handed.data)

    def wait(self) -> None:
        """Raises what went wrong in a host call, too."""
        if self.form == "host_call":
            HostFunction(self.handed.wait)(self.handed.data)
            self.made.check()
        else:
            self.made.wait()

    def run(self) -> Bits:
        self.submit()
        self.wait()
        return self.out

    def expected(self) -> Bits:
        return forward(self.moe, self.batch, **self.options)


def together(work: Callable[[int], None], threads: int) -> None:
    """work(0), work(1), … at the same time, each on a Python thread of its own."""
    running = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def forward_proven(moe: _kernels.MoE, batch: Batch, isa: str, **options: object) -> Bits:
    """forward() on one ISA, which fails unless that ISA's counter moved and no other's did."""
    before = moe.counters()
    out_th = forward(moe, batch, isa=isa, **options)
    assert moved(before, moe.counters()) == ({COUNTERS[isa]} if len(batch.x_th) else set())
    return out_th


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    """Counters of kernels that went up."""
    return {counter for counter in COUNTERS.values() if after.get(counter, 0) > before.get(counter, 0)}


@dataclass(frozen=True, eq=False)
class Case:
    layer: Layer
    batch: Batch
    packed: _kernels.PackedExperts
    experts: list[Expert]  # as stored


@functools.cache
def case(precision: str, sizes: tuple[int, int, int], tokens: int, per_token: int, domains: int = 1) -> Case:
    """One random layer of (experts, hidden, intermediate) and a batch for it, the same for every ISA's test.

    The last two are rounded up where the precision knows whole blocks only.
    """
    rng = np.random.default_rng(list(sizes))
    layer = random_layer(rng, sizes[0], *sizes_of(precision, *sizes[1:]))
    packed = layer.packed(precision, domains=domains)
    return Case(layer, random_batch(rng, layer, tokens, per_token), packed, stored(packed))
