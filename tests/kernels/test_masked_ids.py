"""Expert id -1 stands for no expert: its slot is left out, and a token without any expert gets zeros."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench import _kernels
from tests.drawing import covering, examples
from tests.kernels.arithmetic import accepts
from tests.kernels.layers import Batch, Bits, Call, Case, case, forward, garbage, submit
from tests.kernels.tables import PRECISIONS, few_kernels

NAN = 0x7FC0
FACES = ["forward", "submit", "prepare", "host_call"]


def drawn(of: Case, ids_tk: NDArray[np.int64]) -> Batch:
    return Batch(of.batch.x_th[: len(ids_tk)], ids_tk, of.batch.gates_tk[: len(ids_tk)])


def through(face: str, moe: _kernels.MoE, batch: Batch) -> Bits:
    if face == "forward":
        return forward(moe, batch, isa="reference")
    return Call(face, moe, batch, isa="reference").run()


BOOLEAN = st.booleans()
ids = st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), min_size=1, max_size=9)


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
@examples(4)
@given(ids=ids, domains=st.integers(1, 2), options=st.fixed_dictionaries({"dynamic": BOOLEAN, "numa": BOOLEAN}))
def test_masked_slots_are_left_out_of_the_sum(precision, isa, team, ids, domains, options):
    of = case(precision, (4, 96, 256), 9, 3, domains)
    batch = drawn(of, np.array(ids))
    out = forward(_kernels.MoE(of.packed, team), batch, isa=isa, **options)
    assert accepts(out, precision, of.experts, batch, [128] if domains == 2 else [], isa=isa)
    assert not out[(batch.ids_tk < 0).all(1)].any()


@pytest.mark.parametrize("precision", PRECISIONS)
@examples(8)
@given(ids=ids)
def test_masked_tokens_do_not_change_the_bits_of_others(precision, team, ids):
    of = case(precision, (4, 64, 64), 9, 3)
    batch = drawn(of, np.array(ids))
    moe, routed = _kernels.MoE(of.packed, team), (batch.ids_tk >= 0).any(1)
    alone = Batch(batch.x_th[routed], batch.ids_tk[routed], batch.gates_tk[routed])
    assert (forward(moe, batch, isa="reference")[routed] == forward(moe, alone, isa="reference")).all()


@pytest.mark.parametrize(
    ("precision", "domains", "face"),
    covering(product(PRECISIONS, (1, 2), FACES), lambda precision, domains, face: (precision, (domains, face))),
)
def test_a_call_without_experts_writes_zeros(precision, domains, face, team):
    of = case(precision, (4, 64, 256), 5, 2, domains)
    moe = _kernels.MoE(of.packed, team)
    batch = Batch(of.batch.x_th, np.full_like(of.batch.ids_tk, -1), of.batch.gates_tk)
    assert not through(face, moe, batch).any()
    assert moe.counters()["weight_bytes"] == moe.counters()["flops"] == 0


@pytest.mark.parametrize(("precision", "isa"), few_kernels())
def test_the_content_of_a_masked_token_does_not_matter(precision, isa, team):
    of = case(precision, (4, 64, 64), 6, 2)
    moe = _kernels.MoE(of.packed, team)
    batch = Batch(of.batch.x_th.copy(), of.batch.ids_tk.copy(), of.batch.gates_tk.copy())
    batch.ids_tk[2] = -1
    clean = forward(moe, batch, isa=isa)
    batch.x_th[2], batch.gates_tk[2] = NAN, np.nan
    assert (forward(moe, batch, isa=isa) == clean).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_halves_make_the_whole(precision, team):
    """As deferral splits a call: some experts now, the others later."""
    of = case(precision, (4, 64, 64), 6, 2)
    moe, later = _kernels.MoE(of.packed, team), np.arange(12).reshape(6, 2) % 3 == 0
    halves = [np.where(out_of_it, -1, of.batch.ids_tk) for out_of_it in (later, ~later)]
    outs = [garbage(of.batch) for _ in halves]
    for ticket in [submit(moe, drawn(of, half), out, isa="reference") for half, out in zip(halves, outs, strict=True)]:
        ticket.wait()
    for half, out in zip(halves, outs, strict=True):
        assert accepts(out, precision, of.experts, drawn(of, half))


@pytest.mark.parametrize("bad", [-2, -(2**40), 4])
@pytest.mark.parametrize("face", FACES)
def test_other_ids_out_of_range_stay_an_error(face, bad, team):
    of = case("bf16", (4, 64, 64), 6, 2)
    batch = Batch(of.batch.x_th, of.batch.ids_tk.copy(), of.batch.gates_tk)
    batch.ids_tk[1], batch.ids_tk[3, 1] = -1, bad
    with pytest.raises(IndexError, match=rf"expert id {bad} of token 3 is not in 0\.\.3 \(or -1 for none\)"):
        through(face, _kernels.MoE(of.packed, team), batch)
