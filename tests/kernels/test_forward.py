"""The fused operator against float64 arithmetic on the weights as stored; the check rejects every mutant."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from tests.drawing import examples, few_of
from tests.kernels.arithmetic import Truth, accepts, cuts_between, exact, relative_error, truth_of
from tests.kernels.layers import (
    GLUS,
    Batch,
    Bits,
    Case,
    case,
    crossover,
    forward,
    forward_proven,
    moved,
    on_one_expert,
    random_batch,
    random_biases,
    random_layer,
    stored,
    to_bf16,
    widen,
)
from tests.kernels.tables import (
    EXPECTED,
    INTEGER,
    PRECISIONS,
    few_kernels,
    kernels,
    needs,
    quantises_activations,
    sizes_of,
    unit_of,
)


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


SHAPES = st.fixed_dictionaries(
    {
        "experts": st.integers(1, 6),
        "hidden": st.one_of(st.integers(1, 90), st.sampled_from([96, 160, 320])),
        "rest": st.one_of(st.integers(1, 140), st.just(160)),  # of the intermediate size, beyond what each domain needs
        "domains": st.integers(1, 3),
        "tokens": st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 19, 33])),
        "per_token": st.integers(1, 16),
        "glu": st.sampled_from(GLUS),
        "with_biases": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
        "crossover": st.tuples(st.integers(1, 40), st.integers(1, 40)),
    }
)
TEAMS = st.sampled_from(["pool", "three_threads"])
OPTIONS = st.fixed_dictionaries({"numa": st.booleans(), "dynamic": st.booleans()})
# Beside each other where register blocks and tiles of 16 or 32 rows end, and one beyond a chunk of 256.
FEW_HEIGHTS = (*range(1, 18), 24, 31, 32, 33, 40, 48, 49, 65, 257)
HEIGHTS = {"few": FEW_HEIGHTS, "every": (*range(1, 41), 64, 65, 129, 257, 300)}


@pytest.mark.parametrize(("precision", "isa"), kernels())
@examples(4)
@given(shape=SHAPES, team_of=TEAMS, options=OPTIONS)
def test_any_shape_split_and_activation_agrees_with_float64(precision, isa, team_of, request, shape, options):
    team, rng, unit = request.getfixturevalue(team_of), np.random.default_rng(shape["seed"]), unit_of(precision)
    domains, glu = min(shape["domains"], 2 if team_of == "pool" else 3), shape["glu"]
    hidden, intermediate = sizes_of(precision, shape["hidden"], (domains - 1) * unit + shape["rest"])
    layer = random_layer(rng, shape["experts"], hidden, intermediate)
    biases = random_biases(rng, layer) if shape["with_biases"] else ()
    batch = random_batch(rng, layer, shape["tokens"], shape["per_token"])
    packed = layer.packed(precision, team, domains, glu, biases)
    with crossover(isa, precision, shape["crossover"]):
        out = forward_proven(_kernels.MoE(packed, team), batch, isa, **options)
    cuts = cuts_between(domains, intermediate, unit)
    assert accepts(out, precision, stored(packed), batch, cuts, glu=glu, biases=biases, isa=isa)


@cache
def of_heights(precision, heights):
    """Packed experts, and what is right for batches of these heights on one of them."""
    rng = np.random.default_rng(20251013)
    layer = random_layer(rng, 3, 96, 64)
    packed = layer.packed(precision)
    batches, experts = (
        (on_one_expert(random_batch(rng, layer, tokens, 1)) for tokens in HEIGHTS[heights]),
        stored(packed),
    )
    return packed, [Truth(precision, experts, batch) for batch in batches]


@pytest.mark.parametrize("heights", few_of(HEIGHTS, {"few"}))
@pytest.mark.parametrize(("precision", "isa"), kernels())
def test_blocks_of_every_height(precision, isa, heights, pool):
    """All tokens on one expert of many, which takes other register blocks at each number of them."""
    packed, truths = of_heights(precision, heights)
    moe = _kernels.MoE(packed, pool)
    for truth in truths:
        assert truth.accepts(forward_proven(moe, truth.batch, isa), isa), f"{len(truth.batch.x_th)} tokens"


@pytest.mark.parametrize(("precision", "isa"), few_kernels(all_of="amx"))
@pytest.mark.parametrize("sizes", [(1, 2080, 144), (1, 144, 2080)])
def test_wide_and_deep_layers(precision, isa, sizes, pool):
    """More strips than one task has, more of k than one piece of tiles."""
    wide = case(precision, sizes, 9, 1)
    out = forward_proven(_kernels.MoE(wide.packed, pool), wide.batch, isa)
    assert truth_of(precision, wide).accepts(out, isa)


@cache
def of_a_real_width(precision):
    """A layer, and what it gives exactly with its weights before packing."""
    real = case(precision, (2, 1024, 256), 16, 2)
    return real, exact(real.layer.experts, real.batch).out_th


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_gaussian_error_at_a_real_width(precision, isa, pool):
    """Against the weights before packing; and within 0.03 of what is stored, int8 activations and all."""
    real, before = of_a_real_width(precision)
    truth = truth_of(precision, real)
    out = forward_proven(_kernels.MoE(real.packed, pool), real.batch, isa)
    assert relative_error(out, before) <= EXPECTED[precision].gaussian_error
    assert relative_error(out, truth.exact.out_th) <= 0.03
    assert truth.accepts(out, isa)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_repeated_ids_add_up(precision, isa, pool, rng):
    layer = random_layer(rng, 3, 64, 32)
    once = random_batch(rng, layer, 5, 1)
    twice = Batch(once.x_th, np.repeat(once.ids_tk, 2, 1), np.repeat(once.gates_tk / 2, 2, 1))
    packed = layer.packed(precision)
    assert accepts(forward_proven(_kernels.MoE(packed, pool), twice, isa), precision, stored(packed), once, isa=isa)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_output_may_be_the_input(precision, pool, rng):
    layer = random_layer(rng, 4, 64, 64)
    batch = random_batch(rng, layer, 9, 2)
    moe = _kernels.MoE(layer.packed(precision), pool)
    expected = forward(moe, batch, isa="reference")
    moe.forward(batch.x_th, batch.ids_tk, batch.gates_tk, batch.x_th, isa="reference")
    assert (batch.x_th == expected).all()


@pytest.mark.parametrize("other", [pytest.param(isa, marks=needs(isa)) for isa in ("avx512", "amx")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_emulated_tiles_agree(precision, other, pool):
    """But for the order of float32 sums, which now and then tips a result to the next bf16, and int8 activations."""
    tall = case(precision, (2, 800, 96), 70, 1)
    moe = _kernels.MoE(tall.packed, pool)
    real, emulated = forward_proven(moe, tall.batch, other), forward_proven(moe, tall.batch, "amx_emulated")
    assert truth_of(precision, tall).accepts(emulated, "amx_emulated")
    alike = quantises_activations(precision, other) == quantises_activations(precision, "amx_emulated")
    assert relative_error(real, widen(emulated)) <= (0.001 if alike else 0.03)


WITH_ZERO = [
    of for of in kernels(*(name for name in INTEGER if name != "iq4_nl")) if quantises_activations(*map(str, of.values))
]


@pytest.mark.parametrize(("precision", "isa"), WITH_ZERO)
def test_activations_are_rounded_alike_on_every_isa(precision, isa, pool):
    """Half of the largest magnitude lies between the steps 63 and 64 of 127, for every mantissa that bf16 has.

    h = silu(16) times x, one column for each x: the step comes out as it was rounded.
    """
    largest = np.arange(128, 256) / 128
    x_th = np.zeros((128, 64))
    x_th[:, 0], x_th[:, 1] = largest, largest / 2
    gate, up, down = np.zeros((64, 64)), np.eye(64), np.eye(64)
    gate[:, 0] = 16
    packed = _kernels.PackedExperts(1, 64, 64, precision)
    packed.write_expert(0, to_bf16(gate), to_bf16(up), to_bf16(down))
    batch = Batch(to_bf16(x_th), np.zeros((128, 1), np.int64), np.ones((128, 1), np.float32))
    steps = {}
    for which in ("reference", isa):
        out = widen(forward_proven(_kernels.MoE(packed, pool), batch, which))
        steps[which] = (out[:, 1] / out[:, 0] * 127).round()
    assert set(steps["reference"]) <= {63, 64}
    assert (steps[isa] == steps["reference"]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("pair", "counter"), [((9, 9), "stream_calls"), ((8, 9), "fetching_calls"), ((1, 8), "block_calls")]
)
@pytest.mark.skipif(bool(_kernels.grants()["avx512"]), reason=f"avx512: {_kernels.grants()['avx512']}")
def test_the_crossover_decides_which_loop_multiplies(precision, pair, counter, pool, rng):
    layer = random_layer(rng, 1, 64, 64)
    isa = _kernels.isa_of("avx512", precision)
    moe, batch = _kernels.MoE(layer.packed(precision), pool), random_batch(rng, layer, 8, 1)
    with crossover(isa, precision, pair):
        forward(moe, batch, avx512=True)
    counted = moe.counters()
    assert counted[counter] == counted["avx512_calls"] > 0


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("reference", "bf16", 0, 1), ValueError, "fetch_from=0"),
        (("reference", "bf16", 1, 0), ValueError, "block_from=0"),
        (("reference", "bf17", 1, 1), ValueError, "bf17"),
        (("avx1024", "bf16", 1, 1), ValueError, "unknown isa 'avx1024'"),
    ],
)
def test_no_other_crossover_can_be_set(arguments, error, says):
    before = _kernels.crossovers()
    with pytest.raises(error, match=says):
        _kernels.set_crossover(*arguments)
    assert _kernels.crossovers() == before


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.skipif(bool(_kernels.grants()["amx"]), reason=f"amx: {_kernels.grants()['amx']}")
def test_both_features_are_split_by_tokens_per_expert(precision, dynamic, pool, rng):
    """Experts of fewer than amx_min_tokens tokens come out as AVX-512 makes them, the others as AMX does."""
    layer = random_layer(rng, 3, 64, 96)
    few, many = [0] * 4, [1] * 5 + [2] * 20
    batch = random_batch(rng, layer, 29, 1)
    batch = Batch(batch.x_th, np.array([few + many]).T, batch.gates_tk)
    moe = _kernels.MoE(layer.packed(precision), pool)
    options = {"avx512": True, "dynamic": dynamic}
    hybrid = forward(moe, batch, amx=True, amx_min_tokens=5, **options)
    assert moved({}, moe.counters()) == {"avx512_calls", "amx_tiles"}
    assert (hybrid[:4] == forward(moe, batch, **options)[:4]).all()
    assert (hybrid[4:] == forward(moe, batch, isa="amx", dynamic=dynamic)[4:]).all()


@pytest.mark.skipif(bool(_kernels.grants()["amx"]), reason=f"amx: {_kernels.grants()['amx']}")
@pytest.mark.parametrize(("amx_min_tokens", "moving"), [(0, {"amx_tiles"}), (4, {"amx_tiles"}), (5, {"avx512_calls"})])
def test_the_threshold_is_the_first_number_of_tokens_for_amx(amx_min_tokens, moving, pool, rng):
    layer = random_layer(rng, 2, 64, 32)
    batch = random_batch(rng, layer, 4, 1)
    batch = Batch(batch.x_th, np.zeros_like(batch.ids_tk), batch.gates_tk)
    moe = _kernels.MoE(layer.packed(), pool)
    before = moe.counters()
    forward(moe, batch, avx512=True, amx=True, amx_min_tokens=amx_min_tokens)
    assert moved(before, moe.counters()) == moving
