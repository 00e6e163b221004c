"""Random MoE layers as numpy arrays, their float64 reference, and what counts as agreement with it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench import _kernels

COUNTERS = {
    "reference": "reference_calls",
    "avx2": "avx2_calls",
    "avx512": "avx512_calls",
    "amx": "amx_tiles",
    "amx_emulated": "emulated_tiles",
}
GRANTED = [isa for isa, missing in _kernels.grants().items() if not missing]

Bits = NDArray[np.uint16]


def to_bf16(x: NDArray[np.float64]) -> Bits:
    """Round to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(x: Bits) -> NDArray[np.float64]:
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Layer:
    gate_eih: Bits
    up_eih: Bits
    down_ehi: Bits

    def packed(self, pool: _kernels.ThreadPool | None = None) -> _kernels.PackedExperts:
        experts, intermediate, hidden = self.gate_eih.shape
        packed = _kernels.PackedExperts(experts, hidden, intermediate)
        for e in range(experts):
            packed.write_expert(e, self.gate_eih[e], self.up_eih[e], self.down_ehi[e], pool)
        return packed


@dataclass(frozen=True)
class Batch:
    x_th: Bits
    ids_tk: NDArray[np.int64]
    gates_tk: NDArray[np.float32]


def random_layer(rng: np.random.Generator, experts: int, hidden: int, intermediate: int) -> Layer:
    def matrices(rows: int, columns: int) -> Bits:
        return to_bf16(rng.standard_normal((experts, rows, columns)) / np.sqrt(columns))

    return Layer(matrices(intermediate, hidden), matrices(intermediate, hidden), matrices(hidden, intermediate))


def random_batch(rng: np.random.Generator, layer: Layer, tokens: int, per_token: int) -> Batch:
    """Ids may repeat within a token."""
    experts, _, hidden = layer.gate_eih.shape
    ids_tk = rng.integers(0, experts, (tokens, per_token))
    return Batch(to_bf16(rng.standard_normal((tokens, hidden))), ids_tk, rng.random((tokens, per_token), np.float32))


def reference(layer: Layer, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The output, and the sum of the absolute values of the products that went into it: [T, H] each."""
    x_th = widen(batch.x_th)
    out_th, size_th = np.zeros_like(x_th), np.zeros_like(x_th)
    for e in np.unique(batch.ids_tk):
        weight_t = np.where(batch.ids_tk == e, batch.gates_tk.astype(np.float64), 0).sum(1)
        token = np.flatnonzero((batch.ids_tk == e).any(1))
        gate, up = x_th[token] @ widen(layer.gate_eih[e]).T, x_th[token] @ widen(layer.up_eih[e]).T
        h = gate / (1 + np.exp(-np.clip(gate, -700, None))) * up
        down = widen(layer.down_ehi[e]).T
        out_th[token] += weight_t[token, None] * (h @ down)
        size_th[token] += np.abs(weight_t[token, None]) * (np.abs(h) @ np.abs(down))
    return out_th, size_th


def agrees(out: Bits, expected: tuple[NDArray[np.float64], NDArray[np.float64]]) -> bool:
    """Every element within the rounding of h and of the result to bf16 (2^-9 each), doubled for float32 sums."""
    exact, size = expected
    return bool((np.abs(widen(out) - exact) <= 2**-8 * (np.abs(exact) + size) + 1e-6).all())


def relative_error(out: Bits, exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(widen(out) - exact) / np.linalg.norm(exact))


def forward(moe: _kernels.MoE, batch: Batch, **options: object) -> Bits:
    """The output, which starts as garbage."""
    out_th = np.full_like(batch.x_th, 0x7FC0)
    moe.forward(batch.x_th, batch.ids_tk, batch.gates_tk, out_th, **options)
    return out_th


def forward_proven(moe: _kernels.MoE, batch: Batch, isa: str, *, dynamic: bool = False) -> Bits:
    """forward() on one ISA, which fails unless that ISA's counter moved and no other's did."""
    before = moe.counters()
    out_th = forward(moe, batch, isa=isa, dynamic=dynamic)
    after = moe.counters()
    moved = {name for name, counter in COUNTERS.items() if after[counter] > before[counter]}
    assert moved == ({isa} if len(batch.x_th) else set())
    return out_th
