"""Weights are packed where they belong, in no more memory than they need, and copied between sets as packed."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.command import python_output
from tests.drawing import covering, examples
from tests.kernels.arithmetic import exact, relative_error
from tests.kernels.layers import Batch, case, forward, random_batch, random_layer, stored, widen
from tests.kernels.tables import EXPECTED, PRECISIONS, sizes_of


def rows(packed: _kernels.PackedExperts, expert: int) -> list[bytes]:
    return [matrix.tobytes() for matrix in packed.read_expert(expert)]


@examples(12)
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


@pytest.mark.parametrize(
    ("precision", "down", "domains"),
    covering(
        (*pair, domains)
        for pair in (("q4_0", "q8_0"), ("fp8", "bf16"), ("bf16", "int4_g128"), ("int8", "fp8"))
        for domains in (1, 2)
    ),
)
def test_down_may_have_a_format_of_its_own(precision, down, domains, pool, rng, tmp_path):
    layer = random_layer(rng, 2, 256, 512)
    packed = _kernels.PackedExperts(2, 256, 512, precision, domains, down_precision=down)
    for e in range(2):
        packed.write_expert(e, layer.gate_eih[e], layer.up_eih[e], layer.down_ehi[e], pool)
    whole = [layer.packed(one, domains=domains).read_expert(1) for one in (precision, precision, down)]
    assert all((was == of[i]).all() for i, (was, of) in enumerate(zip(packed.read_expert(1), whole, strict=True)))
    assert (packed.precision, packed.down_precision) == (precision, down)
    batch = random_batch(rng, layer, 30, 2)
    exactly = exact(stored(packed), batch).out_th
    for options in ({"avx512": True}, {"avx512": True, "amx": True}, {"isa": "reference"}):
        if not any(_kernels.grants()[name] for name in options if name != "isa"):
            assert relative_error(forward(_kernels.MoE(packed, pool), batch, **options), exactly) < 0.03
    if domains == 1:
        packed.save(str(tmp_path / "experts"))
        mapped = _kernels.PackedExperts.map(str(tmp_path / "experts"))
        assert (mapped.precision, mapped.down_precision, mapped.nbytes) == (precision, down, packed.nbytes)


@pytest.mark.parametrize(("precision", "domains"), covering(product(PRECISIONS, (1, 2))))
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


@pytest.mark.parametrize(("precision", "domains"), covering(product(PRECISIONS, (1, 2))))
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


KIND = {"experts": 2, "hidden": 64, "intermediate": 256, "precision": "int4_g32"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"hidden": 96}, "hidden=96 of the source is not 64"),
        ({"intermediate": 128}, "intermediate=128 of the source is not 256"),
        *[({"precision": precision}, "the source differs in precision") for precision in ("int8", "int4_g64")],
        ({"domains": 2}, "domains=2 of the source is not 1"),
        ({"biases": True}, "the source differs in biases"),
        *[({"activation": "gelu_tanh"}, "the source differs in activation"), ({"limit": 7.0}, "in activation")],
        *[({"alpha": 1.702}, "the source differs in activation"), ({"offset": 1.0}, "in activation")],
    ],
)
def test_another_kind_of_expert_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedExperts(**KIND).copy_expert(0, _kernels.PackedExperts(**(KIND | other)), 0)


@pytest.mark.parametrize(
    ("index", "source_index", "message"),
    [(2, 0, r"expert 2 is not in 0\.\.1"), (0, -1, "expert -1"), (0, 3, r"0\.\.2")],
)
def test_an_expert_that_is_not_there_is_named(index, source_index, message):
    with pytest.raises(IndexError, match=message):
        _kernels.PackedExperts(2, 64, 32).copy_expert(index, _kernels.PackedExperts(3, 64, 32), source_index)


def random_bits(rng, *shape):
    return rng.integers(0, 2**16, shape, np.uint16)


def same(was, wrote):
    """Bit for bit, NaN as NaN."""
    return np.array_equal(was.view(np.uint32), wrote.astype(np.uint32) << 16)


@examples(12)
@given(
    hidden=st.integers(1, 140),
    intermediate=st.integers(1, 140),
    pooled=st.booleans(),
    domains=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_bf16_comes_back_bit_for_bit(pool, hidden, intermediate, pooled, domains, seed):
    rng = np.random.default_rng(seed)
    packed = _kernels.PackedExperts(2, hidden, intermediate, domains=min(domains, -(-intermediate // 32)))
    shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    written = [[random_bits(rng, *shape) for shape in shapes] for _ in range(2)]
    for index, matrices in enumerate(written):
        packed.write_expert(index, *matrices, pool if pooled else None)
    for index, matrices in enumerate(written):
        for was, wrote in zip(packed.read_expert(index), matrices, strict=True):
            assert same(was, wrote)


def test_stacked_gate_up_may_be_sliced(rng):
    """As Transformers stores it: [2 * intermediate, hidden], and rows wider than the matrix."""
    stacked = random_bits(rng, 2 * 48, 100)[:, :80]
    down = random_bits(rng, 80, 48)
    packed = _kernels.PackedExperts(1, 80, 48)
    packed.write_expert(0, stacked[:48], stacked[48:], down)
    gate, up, _ = packed.read_expert(0)
    assert same(gate, stacked[:48]) and same(up, stacked[48:])


def test_an_expert_may_be_written_again(rng):
    layer = random_layer(rng, 2, 64, 32)
    packed = layer.packed("int8")
    packed.write_expert(0, layer.gate_eih[1], layer.up_eih[1], layer.down_ehi[1])
    for first, second in zip(packed.read_expert(0), packed.read_expert(1), strict=True):
        assert (first == second).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nbytes_by_hand(precision):
    """Each expert: four strips of gate and up, 64 along k, and four of down, 20 or the next possible size."""
    at_20, at_64, _ = EXPECTED[precision].strip_bytes
    assert _kernels.PackedExperts(3, 64, *sizes_of(precision, 20), precision).nbytes == 3 * 4 * (at_64 + at_20)


def test_properties_are_what_was_given():
    given = {"experts": 3, "hidden": 64, "intermediate": 200, "precision": "int4_g64", "domains": 2}
    assert {name: getattr(_kernels.PackedExperts(**given), name) for name in given} == given


@pytest.mark.parametrize("precision", PRECISIONS)
def test_placement_counts_what_was_touched(precision, rng):
    layer = random_layer(rng, 2, 512, 512)
    packed = layer.packed(precision, domains=2)
    placement = packed.placement()
    assert len(placement) == 2
    assert sum(sum(nodes.values()) for nodes in placement) >= packed.nbytes
    untouched = _kernels.PackedExperts(2, 512, 512, precision)
    assert sum(untouched.placement()[0].values()) == 0


def test_peak_memory_is_the_packed_size_and_one_expert(loaded_children):
    program = f"""
import numpy as np
import re
from pathlib import Path
from ktbench import _kernels
experts, hidden, intermediate = 24, 512, 512
peak = lambda: int(re.search("VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
forget_peak = lambda: Path("/proc/self/clear_refs").write_text("5")
gate = np.full((intermediate, hidden), 0x3f81, np.uint16)
down = np.full((hidden, intermediate), 0x3f81, np.uint16)
pool = _kernels.ThreadPool([min(__import__("os").sched_getaffinity(0))], 0)
for precision in {PRECISIONS}:
    packed = None
    forget_peak()
    before = peak()
    packed = _kernels.PackedExperts(experts, hidden, intermediate, precision)
    for e in range(experts):
        packed.write_expert(e, gate + 0, gate + 0, down + 0, pool)
    print(peak() - before - packed.nbytes)
"""
    beyond = dict(zip(PRECISIONS, map(int, python_output(program).split()), strict=True))
    expert, huge_pages, allocator = 3 * 2 * 512 * 512, 4 << 20, 2 << 20
    assert all(0 <= nbytes <= expert + huge_pages + allocator for nbytes in beyond.values()), beyond


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[(sizes, "must be at least 1") for sizes in ((0, 32, 32), (1, 0, 32), (1, 32, -1))],
        ((1, 32, 32, "fp3"), f"'fp3': allowed are {', '.join(PRECISIONS)}"),
        ((1, 64, 256, "bf16", 2, [0]), "1 nodes for 2 domains"),
        ((1, 64, 256, "bf16", 2, [0, 0, 0]), "3 nodes for 2 domains"),
    ],
)
def test_experts_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        _kernels.PackedExperts(*arguments)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_domains_than_room_are_refused(precision):
    """A domain's share of the intermediate size is whole tiles and groups."""
    with pytest.raises(ValueError, match=r"domains=3: intermediate=64 has room for [12]"):
        _kernels.PackedExperts(1, 64, 64, precision, 3)


def test_a_node_that_is_not_there_is_refused():
    with pytest.raises(OSError, match="."):
        _kernels.PackedExperts(1, 64, 256, domains=1, nodes=[1000])


def test_columns_that_lie_apart_are_refused(rng):
    packed = _kernels.PackedExperts(1, 32, 32)
    square = random_bits(rng, 32, 32)
    with pytest.raises(ValueError, match="up must have contiguous rows"):
        packed.write_expert(0, square, square.T, square)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_expert_out_of_range_is_named(index, rng):
    packed = _kernels.PackedExperts(2, 32, 32)
    square = random_bits(rng, 32, 32)
    with pytest.raises(IndexError, match=rf"expert {index} is not in 0\.\.1"):
        packed.write_expert(index, square, square, square)
    with pytest.raises(IndexError, match=rf"expert {index} is not in 0\.\.1"):
        packed.read_expert(index)


def test_quantised_weights_come_back_as_float32(rng):
    layer = random_layer(rng, 1, 64, 32)
    for precision in PRECISIONS:
        gate, _, down = layer.packed(precision).read_expert(0)
        assert gate.dtype == down.dtype == np.float32
        assert gate.shape == (32, 64) and down.shape == (64, 32)
        assert np.abs(gate - widen(layer.gate_eih[0])).max() < 0.1


@examples(12)
@given(
    sizes=st.tuples(st.integers(1, 140), st.integers(1, 600)),
    precision=st.sampled_from(PRECISIONS),
    domains=st.integers(1, 3),
    pooled=st.booleans(),
    tokens=st.integers(0, 5),
)
def test_products_in_float32_are_those_of_the_weights_that_are_read(pool, sizes, precision, domains, pooled, tokens):
    rng, sizes = np.random.default_rng(sizes), sizes_of(precision, *sizes)
    packed = random_layer(rng, 2, *sizes).packed(precision, domains=min(domains, -(-sizes[1] // 256)))
    for name, matrix in zip(("gate", "up", "down"), packed.read_expert(1), strict=True):
        inputs = rng.standard_normal((tokens, matrix.shape[1]), dtype=np.float32)
        expected = inputs.astype(np.float64) @ matrix.astype(np.float64).T
        found = packed.multiply_expert(1, name, inputs, pool if pooled else None)
        scale = np.abs(inputs).astype(np.float64) @ np.abs(matrix).astype(np.float64).T
        assert (np.abs(found - expected) <= 1e-6 * scale).all()


def test_products_in_float32_refuse_what_does_not_fit(rng):
    packed = random_layer(rng, 2, 64, 32).packed("bf16")
    inputs = np.zeros((3, 64), np.float32)
    for arguments, error, why in (
        ((2, "gate", inputs), IndexError, r"expert 2 is not in 0\.\.1"),
        ((0, "gates", inputs), ValueError, "no matrix 'gates': one of gate, up, down"),
        ((0, "down", inputs), ValueError, "inputs"),
        ((0, "gate", inputs.astype(np.float64)), TypeError, "inputs"),
        ((0, "gate", np.zeros((64, 3), np.float32).T), ValueError, "inputs"),
    ):
        with pytest.raises(error, match=why):
            packed.multiply_expert(*arguments)
