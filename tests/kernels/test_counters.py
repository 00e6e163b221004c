"""Counters against arithmetic by hand."""

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.layers import Batch, Case, case, forward
from tests.kernels.tables import COUNTERS, EXPECTED, PRECISIONS, few_kernels, needs, quantises_activations, unit_of

HIDDEN, INTERMEDIATE, TOKENS = 64, 96, 7


def expert_bytes(precision: str) -> int:
    """12 strips of gate and up have 64 along k, 4 of down 96."""
    _, at_64, at_96 = EXPECTED[precision].strip_bytes
    return 12 * at_64 + 4 * at_96


def two_of_six(precision: str) -> Case:
    """Three tokens to expert 0, four to expert 4."""
    of = case(precision, (6, HIDDEN, INTERMEDIATE), TOKENS, 1)
    ids = np.array([[0]] * 3 + [[4]] * 4)
    return Case(of.layer, Batch(of.batch.x_th, ids, of.batch.gates_tk), of.packed, of.experts)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_bytes_and_flops_are_those_of_the_active_experts(precision, isa, dynamic, pool):
    of = two_of_six(precision)
    moe = _kernels.MoE(of.packed, pool)
    for calls in (1, 2):
        forward(moe, of.batch, isa=isa, dynamic=dynamic)
        counters = moe.counters()
        assert counters["weight_bytes"] == calls * 2 * expert_bytes(precision)
        assert counters["flops"] == calls * 2 * 3 * HIDDEN * INTERMEDIATE * TOKENS


@pytest.mark.parametrize("isa", [pytest.param(isa, marks=needs(isa)) for isa in ("amx", "amx_emulated")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiles_are_strips_by_pieces_of_k_by_sixteen_tokens(precision, isa, pool):
    unit, tile = unit_of(precision), 64 if quantises_activations(precision, isa) else 32
    tiles = sum(strips * (-(-depth // unit) * unit // tile) for strips, depth in ((12, HIDDEN), (4, INTERMEDIATE)))
    of = two_of_six(precision)
    moe = _kernels.MoE(of.packed, pool)
    forward(moe, of.batch, isa=isa)
    assert moe.counters()[COUNTERS[isa]] == 2 * tiles, "three and four tokens are one row of tiles each"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_task_is_counted_once_as_it_was_taken(precision, pool):
    """Of a small layer: four strips each for gate and up, three of each expert, and two each for down of both."""
    of = two_of_six(precision)
    moe = _kernels.MoE(of.packed, pool)
    forward(moe, of.batch, isa="reference")
    static = moe.counters()
    forward(moe, of.batch, isa="reference", dynamic=True)
    both = moe.counters()
    assert static["tasks_static"] == 2 * 3 + 2
    assert static["tasks_dynamic"] == static["tasks_stolen"] == 0
    assert both["tasks_dynamic"] == both["tasks_static"] == static["tasks_static"]


def test_nothing_is_counted_before_a_call_is_waited_for(pool):
    of = two_of_six("int8")
    moe = _kernels.MoE(of.packed, pool)
    out = np.empty_like(of.batch.x_th)
    ticket = moe.submit(of.batch.x_th, of.batch.ids_tk, of.batch.gates_tk, out, isa="reference")
    assert not any(moe.counters().values())
    ticket.wait()
    assert moe.counters()["flops"] == 2 * 3 * HIDDEN * INTERMEDIATE * TOKENS


def test_no_tokens_are_nothing(pool):
    of = case("int8", (6, HIDDEN, INTERMEDIATE), TOKENS, 1)
    moe = _kernels.MoE(of.packed, pool)
    nothing = Batch(of.batch.x_th[:0], of.batch.ids_tk[:0], of.batch.gates_tk[:0])
    assert forward(moe, nothing, isa="reference").shape == (0, HIDDEN)
    assert not any(moe.counters().values())
