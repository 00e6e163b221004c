"""Experts split over domains, which on one NUMA node are logical: same arithmetic, and bytes counted where they lie."""

import numpy as np
import pytest

from ktbench import _kernels
from tests.kernels.arithmetic import accepts, relative_error
from tests.kernels.layers import case, forward, widen
from tests.kernels.tables import FORMATS, PRECISIONS, few_kernels


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_domains_change_no_more_than_scales_do(precision, isa, pool):
    """bf16: float32 sums in another order. Integers: every domain has scales of its own, for down's rows and for h."""
    whole, split = (case(precision, (2, 256, 256), 24, 2, domains=domains) for domains in (1, 2))
    by_one = widen(forward(_kernels.MoE(whole.packed, pool), whole.batch, isa=isa))
    by_two = forward(_kernels.MoE(split.packed, pool), split.batch, isa=isa, numa=True)
    assert relative_error(by_two, by_one) <= {16: 1e-3, 8: 0.03, 4: 0.15}[FORMATS[precision]["bits"]]


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_who_computes_a_domain_changes_nothing(precision, isa, pool, three_threads):
    split = case(precision, (3, 96, 300), 7, 2, domains=2)
    expected = forward(_kernels.MoE(split.packed, pool), split.batch, isa=isa)
    for team in (pool, three_threads):
        moe = _kernels.MoE(split.packed, team)
        for numa in (False, True):
            for dynamic in (False, True):
                assert (forward(moe, split.batch, isa=isa, numa=numa, dynamic=dynamic) == expected).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_are_local_with_numa_and_mixed_without(precision, dynamic, pool):
    split = case(precision, (3, 96, 256), 7, 2, domains=2)
    with_numa, without = (_kernels.MoE(split.packed, pool) for _ in range(2))
    forward(with_numa, split.batch, isa="reference", numa=True, dynamic=dynamic)
    forward(without, split.batch, isa="reference", dynamic=dynamic)
    local = with_numa.counters()
    assert local["local_bytes"] == local["weight_bytes"] == split.packed.nbytes
    assert local["remote_bytes"] == 0
    mixed = without.counters()
    assert mixed["weight_bytes"] == split.packed.nbytes and mixed["local_bytes"] == 0
    if not dynamic:
        assert 0 < mixed["remote_bytes"] < mixed["weight_bytes"]


def test_one_domain_has_nothing_remote(pool):
    whole = case("int8", (3, 96, 256), 7, 2)
    for numa in (False, True):
        moe = _kernels.MoE(whole.packed, pool)
        forward(moe, whole.batch, isa="reference", numa=numa)
        assert moe.counters()["remote_bytes"] == 0
        assert moe.counters()["local_bytes"] == (whole.packed.nbytes if numa else 0)


@pytest.mark.parametrize("call", ["forward", "submit"])
def test_fewer_threads_than_domains_are_refused_with_numa(call, cpus):
    split = case("bf16", (2, 64, 128), 3, 1, domains=2)
    moe = _kernels.MoE(split.packed, _kernels.ThreadPool(cpus[:1], 0))
    batch, out = split.batch, np.zeros_like(split.batch.x_th)
    with pytest.raises(ValueError, match="2 domains need as many threads, the team has 1"):
        getattr(moe, call)(batch.x_th, batch.ids_tk, batch.gates_tk, out, isa="reference", numa=True)
    assert accepts(forward(moe, batch, isa="reference"), "bf16", split.experts, batch)


def test_memory_may_be_bound_to_a_node(pool):
    nodes = sorted(case("bf16", (2, 64, 128), 3, 1).packed.placement()[0])
    layer = case("bf16", (2, 64, 128), 3, 1).layer
    packed = _kernels.PackedExperts(2, 64, 128, "bf16", 2, [nodes[0]] * 2)
    for e in range(2):
        packed.write_expert(e, layer.gate_eih[e], layer.up_eih[e], layer.down_ehi[e], pool)
    assert [set(part) for part in packed.placement()] == [{nodes[0]}] * 2
