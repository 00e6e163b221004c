"""What the operator should compute, in float64, and what counts as agreement with it.

Two models: plain arithmetic on given weights, and the same with activations quantised to int8 as the integer kernels
do it: symmetric per token, x before the first product and h, rounded to bf16, before the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tests.kernels.layers import PLAIN, Batch, Biases, Bits, Case, Expert, Floats, Glu, to_bf16, widen
from tests.kernels.tables import quantises_activations, rounds_weights

Rounding = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Exact:
    """The output, and the sum of the absolute values of the products that went into it."""

    out_th: Floats
    size_th: Floats


def unrounded(x: Floats) -> Floats:
    return x


def int8_of(x: Floats) -> Floats:
    """Rows rounded to 255 steps between -largest and largest magnitude; ties as a float32 product has them."""
    largest = np.abs(x).max(1, keepdims=True, initial=0)
    per_unit = np.divide(
        np.float32(127), largest.astype(np.float32), out=np.zeros_like(largest, np.float32), where=largest > 0
    )
    return (x.astype(np.float32) * per_unit).round() * (largest / 127)


def int8_of_bf16(x: Floats) -> Floats:
    return int8_of(widen(to_bf16(x)))


def exact(experts: Sequence[Expert], batch: Batch, glu: Glu = PLAIN, biases: Sequence[Biases] = ()) -> Exact:
    return _moe(experts, batch, unrounded, unrounded, glu, biases)


def with_int8_activations(
    experts: Sequence[Expert], batch: Batch, cuts: Sequence[int], glu: Glu, biases: Sequence[Biases]
) -> Exact:
    """`cuts` of the intermediate size between domains, each of which quantises its own part of h."""

    def quantised(h: Floats) -> Floats:
        return np.concatenate([int8_of_bf16(part) for part in np.split(h, list(cuts), axis=1)], axis=1)

    return _moe(experts, batch, int8_of, quantised, glu, biases)


def cuts_between(domains: int, intermediate: int, unit: int) -> list[int]:
    """Where domains meet: shares of whole units (32 of bf16, 64 of int8, at least a group of int4)."""
    units = -(-intermediate // unit)
    return [units * d // domains * unit for d in range(1, domains)]


def _moe(
    experts: Sequence[Expert],
    batch: Batch,
    rounded_x: Rounding,
    rounded_h: Rounding,
    glu: Glu,
    biases: Sequence[Biases],
) -> Exact:
    """Slots of expert -1 are left out."""
    x_th = rounded_x(widen(batch.x_th))
    out_th, size_th = np.zeros_like(x_th), np.zeros_like(x_th)
    for e in np.unique(batch.ids_tk[batch.ids_tk >= 0]):
        gate, up, down = experts[e]
        to_gate, to_up, to_down = (b.astype(np.float64) for b in biases[e]) if biases else (0.0, 0.0, 0.0)
        token = np.flatnonzero((batch.ids_tk == e).any(1))
        weight_t1 = np.where(batch.ids_tk == e, batch.gates_tk.astype(np.float64), 0).sum(1)[token, None]
        x = x_th[token]
        act = glu.act(np.minimum(x @ gate.T + to_gate, glu.bound))
        factor = np.clip(x @ up.T + to_up, -glu.bound, glu.bound) + glu.offset
        h = rounded_h(act * factor)
        h_size = np.abs(h)
        if biases or glu != PLAIN:  # float32 sums that nearly cancel are as wrong as their terms are large
            gate_terms = np.abs(x) @ np.abs(gate.T) + np.abs(to_gate)
            up_terms = np.abs(x) @ np.abs(up.T) + np.abs(to_up) + glu.offset
            h_size = h_size + 2**-10 * (gate_terms * np.abs(factor) + np.abs(act) * up_terms)
        out_th[token] += weight_t1 * (h @ down.T + to_down)
        size_th[token] += np.abs(weight_t1) * (h_size @ np.abs(down.T) + np.abs(to_down))
    return Exact(out_th, size_th)


def relative_error(out: Bits, expected: Floats) -> float:
    """Of the output as one vector; infinite where it is not finite."""
    difference, size = float(np.linalg.norm(widen(out) - expected)), float(np.linalg.norm(expected))
    if size == 0 or not np.isfinite(difference):
        return 0.0 if difference == 0 else np.inf
    return difference / size


def agrees(out: Bits, expected: Exact) -> bool:
    """Every element within the rounding of h and of the result to bf16 (2^-9 each), doubled for float32 sums."""
    size = np.abs(expected.out_th) + expected.size_th
    return bool((np.abs(widen(out) - expected.out_th) <= 2**-8 * size + 1e-34).all())


# Rounding of the output to bf16 makes 0.0017; now and then float32 sums tip an h to the next bf16, and with it to the
# next int8: 0.0026 was the worst of 7,500 small random layers.
TOLERANCE = 0.006
# Weights are rounded to bf16 in each of three products: 0.004 on Gaussian weights, more where products cancel.
BF16_TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class Truth:
    """What is right for a batch and the weights as stored, for each way to compute; each is computed when needed."""

    precision: str
    experts: Sequence[Expert]
    batch: Batch
    cuts: Sequence[int] = ()
    glu: Glu = PLAIN
    biases: Sequence[Biases] = ()

    @cached_property
    def exact(self) -> Exact:
        return exact(self.experts, self.batch, self.glu, self.biases)

    @cached_property
    def with_int8(self) -> Exact:
        return with_int8_activations(self.experts, self.batch, self.cuts, self.glu, self.biases)

    def accepts(self, out: Bits, isa: str = "reference") -> bool:
        """By element, or as a vector where anything is rounded."""
        if self.precision == "bf16":
            return agrees(out, self.exact)
        if quantises_activations(self.precision, isa):
            return relative_error(out, self.with_int8.out_th) <= TOLERANCE
        tolerance = BF16_TOLERANCE if rounds_weights(self.precision, isa) else TOLERANCE
        return relative_error(out, self.exact.out_th) <= tolerance


def accepts(
    out: Bits,
    precision: str,
    experts: Sequence[Expert],
    batch: Batch,
    cuts: Sequence[int] = (),
    *,
    isa: str = "reference",
    glu: Glu = PLAIN,
    biases: Sequence[Biases] = (),
) -> bool:
    """Whether `out` is right, where nothing else is computed of the same batch."""
    return Truth(precision, experts, batch, cuts, glu, biases).accepts(out, isa)


@cache
def truth_of(precision: str, of: Case) -> Truth:
    """For every ISA's test on a case of one domain."""
    return Truth(precision, of.experts, of.batch)
