"""An expert of one set becomes an expert of another, packed as it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktbench import _kernels
from tests.kernels.layers import Batch, case, forward, random_layer
from tests.kernels.tables import PRECISIONS, sizes_of


def rows(packed: _kernels.PackedExperts, expert: int) -> list[bytes]:
    return [matrix.tobytes() for matrix in packed.read_expert(expert)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 140), st.integers(1, 280)),
    precision=st.sampled_from(PRECISIONS),
    domains=st.integers(1, 3),
    pooled=st.booleans(),
    experts=st.tuples(st.integers(0, 2), st.integers(0, 1)),
)
def test_it_reads_as_its_source_and_leaves_the_others(pool, sizes, precision, domains, pooled, experts):
    rng, sizes = np.random.default_rng(sizes), sizes_of(precision, *sizes)
    domains = min(domains, -(-sizes[1] // 128))
    here = random_layer(rng, 3, *sizes).packed(precision, domains=domains)
    source = random_layer(rng, 2, *sizes).packed(precision, domains=domains)
    index, source_index = experts
    before = [rows(here, e) for e in range(3)]
    here.copy_expert(index, source, source_index, pool if pooled else None)
    for e in range(3):
        assert rows(here, e) == (rows(source, source_index) if e == index else before[e])


@pytest.mark.parametrize("domains", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_computes_the_same_bits(precision, domains, team):
    of = case(precision, (4, 64, 256), 6, 2, domains)
    few = _kernels.PackedExperts(2, 64, 256, precision, domains)
    few.copy_expert(0, of.packed, 3, team)
    few.copy_expert(1, of.packed, 1, team)
    ids_tk = of.batch.ids_tk % 2
    for slot in range(2):  # one expert per token: sums run in the order of ids
        one = slice(slot, slot + 1)
        gates_tk = np.ascontiguousarray(of.batch.gates_tk[:, one])
        there = Batch(of.batch.x_th, np.ascontiguousarray(3 - 2 * ids_tk[:, one]), gates_tk)
        here = Batch(of.batch.x_th, np.ascontiguousarray(ids_tk[:, one]), gates_tk)
        expected = forward(_kernels.MoE(of.packed, team), there, isa="reference")
        assert (forward(_kernels.MoE(few, team), here, isa="reference") == expected).all()


def test_within_one_set(rng):
    packed = random_layer(rng, 3, 64, 32).packed("int4_g32")
    before = rows(packed, 2)
    packed.copy_expert(0, packed, 2)
    packed.copy_expert(2, packed, 2)
    assert rows(packed, 0) == rows(packed, 2) == before


def test_from_a_file_but_never_into_one(rng, tmp_path):
    source = random_layer(rng, 2, 64, 32).packed("int8")
    path = str(tmp_path / "experts")
    source.save(path)
    mapped = _kernels.PackedExperts.map(path)
    here = _kernels.PackedExperts(1, 64, 32, "int8")
    here.copy_expert(0, mapped, 1)
    assert rows(here, 0) == rows(source, 1)
    with pytest.raises(RuntimeError, match="packed experts in a file cannot be written"):
        mapped.copy_expert(0, source, 1)


@pytest.mark.parametrize(
    ("differing", "message"),
    [
        ((2, 96, 256), "hidden=96 of the source is not 64"),
        ((2, 64, 128), "intermediate=128 of the source is not 256"),
        ((2, 64, 256, "int8"), "the source differs in precision"),
        ((2, 64, 256, "int4_g64"), "the source differs in precision"),
        ((2, 64, 256, "int4_g32", 2), "domains=2 of the source is not 1"),
    ],
)
def test_another_kind_of_set_is_refused(differing, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedExperts(2, 64, 256, "int4_g32").copy_expert(0, _kernels.PackedExperts(*differing), 0)


@pytest.mark.parametrize("domains", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_biases_come_along(precision, domains, pool, rng):
    hidden, intermediate = sizes_of(precision, 60, 250)
    layer = random_layer(rng, 1, hidden, intermediate)
    here, source = (_kernels.PackedExperts(2, hidden, intermediate, precision, domains, biases=True) for _ in range(2))
    gate, up, down = (rng.standard_normal(size, np.float32) for size in (intermediate, intermediate, hidden))
    source.write_expert(
        1, layer.gate_eih[0], layer.up_eih[0], layer.down_ehi[0], gate_bias=gate, up_bias=up, down_bias=down
    )
    here.copy_expert(0, source, 1, pool)
    assert rows(here, 0) == rows(source, 1)
    assert all((copied == given).all() for copied, given in zip(here.read_biases(0), (gate, up, down), strict=True))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"biases": True}, "the source differs in biases"),
        ({"activation": "gelu_tanh"}, "the source differs in activation"),
        ({"limit": 7.0}, "the source differs in activation"),
        ({"alpha": 1.702}, "the source differs in activation"),
        ({"offset": 1.0}, "the source differs in activation"),
    ],
)
def test_another_kind_of_expert_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedExperts(2, 64, 32).copy_expert(0, _kernels.PackedExperts(2, 64, 32, **other), 0)


@pytest.mark.parametrize(
    ("index", "source_index", "message"),
    [(2, 0, r"expert 2 is not in 0\.\.1"), (0, -1, "expert -1"), (0, 3, r"0\.\.2")],
)
def test_an_expert_that_is_not_there_is_named(index, source_index, message):
    with pytest.raises(IndexError, match=message):
        _kernels.PackedExperts(2, 64, 32).copy_expert(index, _kernels.PackedExperts(3, 64, 32), source_index)
