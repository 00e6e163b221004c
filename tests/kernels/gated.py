"""Layers with any gated activation, with biases or without, and what they should compute, in float64."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench import _kernels
from tests.kernels.arithmetic import INT8_TOLERANCE, Exact, agrees, int8_of, int8_of_bf16, relative_error
from tests.kernels.layers import Batch, Bits, Floats, Layer, stored, widen


@dataclass(frozen=True)
class Glu:
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

Biases = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # gate, up [I], down [H]


def random_biases(rng: np.random.Generator, layer: Layer) -> list[Biases]:
    experts, intermediate, hidden = layer.gate_eih.shape
    return [
        tuple(rng.standard_normal(n).astype(np.float32) for n in (intermediate, intermediate, hidden))
        for _ in range(experts)
    ]


def packed_with(
    layer: Layer,
    precision: str,
    glu: Glu,
    biases: Sequence[Biases],
    team: _kernels.Team | None = None,
    domains: int = 1,
) -> _kernels.PackedExperts:
    """No biases at all: experts without."""
    experts, intermediate, hidden = layer.gate_eih.shape
    packed = _kernels.PackedExperts(
        experts, hidden, intermediate, precision, domains, **asdict(glu), biases=bool(biases)
    )
    for e in range(experts):
        names = dict(zip(("gate_bias", "up_bias", "down_bias"), biases[e], strict=True)) if biases else {}
        packed.write_expert(e, layer.gate_eih[e], layer.up_eih[e], layer.down_ehi[e], team, **names)
    return packed


def by_float64(
    packed: _kernels.PackedExperts, glu: Glu, biases: Sequence[Biases], batch: Batch, cuts: Sequence[int] = ()
) -> Exact:
    """Weights as stored; activations int8 where the kernels have them so, each domain's part of h by itself."""
    bf16 = packed.precision == "bf16"
    x_th = widen(batch.x_th) if bf16 else int8_of(widen(batch.x_th))
    out_th, size_th = np.zeros_like(x_th), np.zeros_like(x_th)
    for e, (gate, up, down) in enumerate(stored(packed)):
        to_gate, to_up, to_down = (b.astype(np.float64) for b in biases[e]) if biases else (0.0, 0.0, 0.0)
        weight_t1 = np.where(batch.ids_tk == e, batch.gates_tk.astype(np.float64), 0).sum(1)[:, None]
        act = glu.act(np.minimum(x_th @ gate.T + to_gate, glu.bound))
        factor = np.clip(x_th @ up.T + to_up, -glu.bound, glu.bound) + glu.offset
        h = act * factor if bf16 else int8_by_domain(act * factor, cuts)
        gate_terms = np.abs(x_th) @ np.abs(gate.T) + np.abs(to_gate)
        up_terms = np.abs(x_th) @ np.abs(up.T) + np.abs(to_up) + glu.offset
        # Float32 sums that nearly cancel are as wrong as their terms are large.
        h_size = np.abs(h) + 2**-10 * (gate_terms * np.abs(factor) + np.abs(act) * up_terms)
        out_th += weight_t1 * (h @ down.T + to_down)
        size_th += np.abs(weight_t1) * (h_size @ np.abs(down.T) + np.abs(to_down))
    return Exact(out_th, size_th)


def int8_by_domain(h: Floats, cuts: Sequence[int]) -> Floats:
    return np.concatenate([int8_of_bf16(part) for part in np.split(h, list(cuts), axis=1)], axis=1)


def right(out: Bits, packed: _kernels.PackedExperts, expected: Exact) -> bool:
    if packed.precision == "bf16":
        return agrees(out, expected)
    return relative_error(out, expected.out_th) <= INT8_TOLERANCE
