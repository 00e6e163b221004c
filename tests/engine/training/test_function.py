"""Gradients through frozen experts: exact formulas by PyTorch's own check, kernels against float64 in every format."""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench import _kernels
from ktbench._kernels import PackedExperts, ThreadPool
from ktbench.engine.forms import Glu
from ktbench.engine.training.function import NOT_ADAPTED, FrozenExperts, experts_autograd
from ktbench.engine.training.slots import LoraSlots
from tests.drawing import covering
from tests.engine.training.layers import (
    EXPERTS,
    Call,
    by_kernels,
    dense,
    error,
    pack,
    plain,
    random_adapters,
    random_experts,
    stored,
    with_factors,
)

FORMATS = _kernels.formats()
ISAS = [isa for isa, missing in _kernels.grants().items() if not missing and isa != "amx_emulated"]
NAMES = ("output", "hidden", "gates", "gate_up A", "gate_up B", "down A", "down B")


@pytest.fixture(scope="module")
def pool() -> ThreadPool:
    return ThreadPool((sorted(os.sched_getaffinity(0)) * 2)[:2], 100)


@st.composite
def routings(draw: st.DrawFn) -> torch.Tensor:
    """Of 1 to 20 tokens: experts without tokens, tokens without experts, all tokens to one expert."""
    tokens, per_token = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    ids = st.one_of(st.integers(-1, EXPERTS - 1), st.just(draw(st.integers(0, EXPERTS - 1))))
    rows = draw(st.lists(st.lists(ids, min_size=per_token, max_size=per_token), min_size=tokens, max_size=tokens))
    return torch.tensor(rows)


SOME = torch.tensor([[0, 3], [3, 1], [-1, 3], [0, 0]])


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    "glu",
    [Glu(), Glu(alpha=1.702, limit=0.9, offset=1.0), Glu(activation="gelu_tanh")],
    ids=["silu", "gpt_oss", "gelu"],
)
def test_formulas_pass_the_gradient_check_of_pytorch(glu: Glu, recompute: bool) -> None:
    experts = random_experts(1, 6, 4, biases=True, glu=glu)
    frozen, call, adapters = dense(experts, recompute=recompute), Call.of(SOME, hidden=6), random_adapters(2, 6, 4, 2)

    def run(hidden: torch.Tensor, gates: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
        return experts_autograd(frozen, hidden, call.ids, gates, with_factors(adapters, factors))

    arguments = [one.clone().requires_grad_() for one in (call.hidden, call.gates, *adapters.factors)]
    assert torch.autograd.gradcheck(run, arguments)


@given(ids=routings(), adapted=st.booleans(), biased=st.booleans(), recompute=st.booleans())
def test_any_routing_gives_what_the_definition_gives(
    ids: torch.Tensor, adapted: bool, biased: bool, recompute: bool
) -> None:
    experts, call = random_experts(3, biases=biased), Call.of(ids)
    adapters = random_adapters(4) if adapted else NOT_ADAPTED
    seen = call.gradients(dense(experts, recompute=recompute), adapters)
    inputs = [call.hidden, call.gates, *(one for one in adapters.factors if one is not None)]
    inputs = [one.clone().requires_grad_() for one in inputs]
    if adapted:
        adapters = with_factors(adapters, inputs[2:])
    output = plain(experts, inputs[0], ids, inputs[1], adapters)
    truth = [output.detach()]
    if output.requires_grad:
        truth += torch.autograd.grad(output, inputs, call.grad, allow_unused=True)
    for name, one, other in zip(NAMES, seen, truth, strict=False):
        assert torch.allclose(one, torch.zeros_like(one) if other is None else other, atol=1e-10), name


def met_by_transposed(precision: str, isa: str) -> tuple[str, tuple[str, str | None]]:
    """Every ISA, and every format compiled for each of the three that these products know."""
    feature = _kernels.isas()[isa]["feature"]
    return isa, (precision, "avx512" if feature == "amx" else feature)


PAIRS = [
    (name, isa)
    for name, row in FORMATS.items()
    for isa in ISAS
    if isa in row["isas"] and not name.startswith(("iq1", "iq2", "iq3"))
]


@cache
def packed_and_plain(precision: str) -> tuple[PackedExperts, FrozenExperts]:
    """Experts in a format, and the same in float64 as they are stored."""
    unit = FORMATS[precision]["group"] or 1
    hidden, width = (size if not FORMATS[precision]["whole_blocks"] else size // unit * unit for size in (352, 160))
    experts = random_experts(5, hidden, width)
    packed = pack(experts, precision)
    return packed, dense(stored(packed, experts))


@pytest.mark.parametrize(("precision", "isa"), covering(PAIRS, met_by_transposed))
def test_transposed_products_are_those_of_the_weights_as_they_are_stored(
    precision: str, isa: str, pool: ThreadPool
) -> None:
    packed, truth = packed_and_plain(precision)
    ids = torch.randint(-1, EXPERTS, (23, 2), generator=torch.Generator().manual_seed(1))
    seen, slots = by_kernels(packed, pool, isa=isa), LoraSlots.of(ids, EXPERTS)
    sizes = (("gate_up", 2 * packed.intermediate), ("down", packed.hidden))
    for which, columns in sizes:
        rows = torch.randn(len(slots), columns, generator=torch.Generator().manual_seed(2))
        exact = truth.products.transposed(which, rows.double(), slots.rows, slots)
        assert error(seen.products.transposed(which, rows, slots.rows, slots).double(), exact) < 1e-6


@given(
    ids=routings(),
    precision=st.sampled_from(["bf16", "int8", "int4_g32", "fp8"]),
    isa=st.sampled_from(ISAS),
    recompute=st.booleans(),
    options=st.fixed_dictionaries({"dynamic": st.booleans(), "numa": st.booleans()}),
    domains=st.integers(1, 2),
)
def test_kernels_agree_with_float64(  # noqa: PLR0917
    pool: ThreadPool,
    ids: torch.Tensor,
    precision: str,
    isa: str,
    recompute: bool,
    options: dict[str, bool],
    domains: int,
) -> None:
    if isa not in FORMATS[precision]["isas"]:
        isa = "reference"
    hidden, width = 96, 256
    experts, adapters = random_experts(6, hidden, width), random_adapters(8, hidden, width)
    call, packed = Call.of(ids, 7, hidden), pack(experts, precision, domains)
    truth = call.gradients(dense(stored(packed, experts)), adapters)
    frozen = by_kernels(packed, pool, recompute=recompute, isa=isa, **options)
    limit = 0.03 if FORMATS[precision]["isas"][isa] == "int8" else 0.01
    # A gate's gradient is one dot product, which may be small beside its factors.
    dots = (call.grad.norm(dim=1) * truth[0].norm(dim=1)).norm()
    for name, one, other in zip(NAMES, call.gradients(frozen, adapters, torch.bfloat16), truth, strict=True):
        size = max(other.norm(), dots) if name == "gates" else other.norm()
        assert (one - other).norm() <= limit * size, name


def test_results_depend_neither_on_schedule_nor_on_threads() -> None:
    packed = pack(random_experts(9, 96, 256), "int8", 2)
    call = Call.of(torch.randint(0, EXPERTS, (40, 2), generator=torch.Generator().manual_seed(1)), hidden=96)
    cpus = sorted(os.sched_getaffinity(0)) * 3
    results = []
    for threads, dynamic, numa in ((1, False, False), (3, True, False), (2, False, True)):
        team = ThreadPool(cpus[:threads], 50)
        frozen = by_kernels(packed, team, isa="reference", dynamic=dynamic, numa=numa)
        results.append(call.gradients(frozen, dtype=torch.bfloat16))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_an_id_that_is_no_expert_is_refused() -> None:
    call = Call.of(torch.tensor([[EXPERTS]]), hidden=6)
    with pytest.raises(IndexError, match="allowed are -1 to 4"):
        experts_autograd(dense(random_experts(1, 6, 4)), call.hidden, call.ids, call.gates)
