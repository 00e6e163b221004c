"""The check is on trial: what is wrong must be called wrong."""

from collections.abc import Iterator

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.arithmetic import accepts
from tests.kernels.layers import Batch, Bits, Case, case, forward, random_batch, widen
from tests.kernels.tables import PRECISIONS


def outputs_of_mutants(
    right: Bits, of: Case, moe: _kernels.MoE, rng: np.random.Generator
) -> Iterator[tuple[str, Bits]]:
    batch = of.batch
    one_dropped = batch.gates_tk.copy()
    one_dropped[5, 2] = 0
    two_swapped = batch.ids_tk.copy()
    two_swapped[7, [0, 1]] = [0, 1]
    other = random_batch(rng, of.layer, 12, 4)
    yield "zeros", np.zeros_like(right)
    yield "stale", forward(moe, other, isa="reference")
    yield "NaN", np.full_like(right, 0x7FC0)
    yield "one expert dropped", forward(moe, Batch(batch.x_th, batch.ids_tk, one_dropped), isa="reference")
    yield "two experts swapped", forward(moe, Batch(batch.x_th, two_swapped, batch.gates_tk), isa="reference")
    yield (
        "gate weights reversed",
        forward(moe, Batch(batch.x_th, batch.ids_tk, batch.gates_tk[:, ::-1].copy()), isa="reference"),
    )
    yield "rows swapped", right[::-1].copy()
    yield "one token off by 5 %", with_one_token_off(right)


def with_one_token_off(right: Bits) -> Bits:
    off = right.copy()
    off[np.linalg.norm(widen(right), axis=1).argmax()] += 8  # of 128 steps per octave
    return off


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_mutant_is_rejected_and_the_right_output_accepted(precision, pool, rng):
    of = case(precision, (8, 128, 64), 12, 4)
    moe = _kernels.MoE(of.packed, pool)
    right = forward(moe, of.batch, isa="reference")
    accepted = [
        name for name, out in outputs_of_mutants(right, of, moe, rng) if accepts(out, precision, of.experts, of.batch)
    ]
    assert accepts(right, precision, of.experts, of.batch)
    assert not accepted


def test_one_element_of_bf16_is_enough(pool):
    of = case("bf16", (8, 128, 64), 12, 4)
    off = forward(_kernels.MoE(of.packed, pool), of.batch, isa="reference")
    off[np.unravel_index(np.abs(widen(off)).argmax(), off.shape)] += 4  # 3 %
    assert not accepts(off, "bf16", of.experts, of.batch)
