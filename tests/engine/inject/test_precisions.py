"""Rules that give the experts of some layers a precision of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.inject.match import require_operators
from ktbench.run.check import check
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import routed_bytes
from ktbench.spec.support import unsupported
from ktbench.spec.weights import Precision, expert_bytes
from tests.engine.engines import FUSED, cell, engine_for, logits, needs_vector
from tests.engine.tiny import decode, layer, tiny_model

needs_kernels = needs_vector()
MODEL = tiny_model(num_hidden_layers=4)
LATE = r"model\.layers\.[23]\.mlp\.experts"
PLACED = PlacementSpec(policy="uniform", ratio=0.5)
EARLY = r"model\.layers\.[01]\.mlp\.experts"


def mixed(own: str, others: str, precision: str = "int8") -> InjectSpec:
    """The experts of the modules `own` in a precision, those of `others` as the request says."""
    return InjectSpec(
        name="mixed",
        rules=(
            InjectRule(name="own", module=own, operator="experts", args={"precision": precision}),
            InjectRule(name="others", module=others, operator="experts"),
        ),
    )


def requested(inject: InjectSpec | None = None, precision: Precision = "bf16", **engine: Any) -> RunSpec:
    one = cell(MODEL, decode(batch=3), precision=precision, **(FUSED | {"threads": None} | engine))
    return one if inject is None else replace(one, inject=inject)


def formats(system: HybridEngine) -> list[str]:
    return [one.fused.packed.precision for one in system._components.operators]  # type: ignore[union-attr]


def joined(first: RunSpec, second: RunSpec) -> list[Tensor]:
    """Logits of the first cell's engine with the last two layers of the second's."""
    system, other = engine_for(first), engine_for(second)
    other.configure(second)
    for mine, theirs in list(zip(system._components.operators, other._components.operators, strict=True))[2:]:
        mine.fused = theirs.fused
    return logits(system, first)


@needs_kernels
def test_layers_that_a_rule_matches_are_packed_in_its_precision_and_the_others_as_requested() -> None:
    """Against engines of one precision, whose layers are put together by hand."""
    bf16, int8 = requested(), requested(precision="int8")
    late, early = requested(mixed(LATE, EARLY)), requested(mixed(EARLY, LATE))
    system = engine_for(late)
    seen = logits(system, late)
    assert formats(system) == ["bf16", "bf16", "int8", "int8"]
    assert check(system.observe(), system.reference, late.tolerance).outcome is Outcome.OK
    wanted = joined(bf16, int8)
    assert all(map(torch.equal, seen, wanted))
    assert all(map(torch.equal, logits(engine_for(early), early), joined(int8, bf16)))
    for wrong in (joined(int8, bf16), joined(bf16, bf16), joined(int8, int8)):
        assert not any(map(torch.equal, seen, wrong))


@needs_kernels
def test_a_request_in_int8_keeps_layers_in_bf16_that_a_rule_says() -> None:
    asked = requested(mixed(LATE, EARLY, "bf16"), precision="int8")
    system = engine_for(asked)
    assert all(map(torch.equal, logits(system, asked), joined(requested(precision="int8"), requested())))
    assert formats(system) == ["int8", "int8", "bf16", "bf16"]


def test_the_plan_counts_the_largest_precision() -> None:
    """Which layers match is known once there is a network."""
    shape = MODEL.shape
    layers = shape.moe_layers * shape.experts
    assert routed_bytes(requested(mixed(LATE, EARLY))) == layers * expert_bytes(shape, "bf16")
    up = requested(mixed(LATE, EARLY, "int8"), precision="int4_g32")
    assert routed_bytes(up) == layers * expert_bytes(shape, "int8")


def test_mixed_experts_are_held_to_the_error_of_quantised_ones_and_base_to_that_of_bf16() -> None:
    assert requested(mixed(LATE, EARLY)).is_quantised
    assert not requested(mixed(LATE, EARLY, "bf16")).is_quantised
    base = cell(MODEL, decode())
    assert not replace(base, inject=mixed(LATE, EARLY)).is_quantised


@pytest.mark.parametrize(
    ("operator", "args", "says"),
    [
        ("experts", {"precision": "int7"}, "args.precision=int7: allowed are bf16, int8, int4_g32"),
        ("experts", {"precision": "iq2"}, "args.precision=iq2: allowed are bf16"),
        ("experts", {"precision": 8}, "args.precision=8: allowed are bf16"),
        ("experts", {"device": "cuda"}, "has no argument 'device'; allowed are precision"),
        ("linear", {"precision": "iq1"}, "args.precision=iq1: allowed are bf16, int8"),
        ("linear", {"device": "cpu"}, "allowed are precision; modules have no device of their own: engine.device is"),
        ("experts", {"generate_device": "cuda"}, "engine.placement puts experts there"),
        ("linear", {"generate_op": "KLinearMarlin"}, "kernels are features"),
        ("rms_norm", {"precision": "int8"}, "has no argument 'precision'; it takes none"),
    ],
)
def test_arguments_that_are_wrong_are_refused(operator: str, args: dict[str, Any], says: str) -> None:
    rule = InjectRule(name="own", module=LATE, operator=operator, args=args)
    with pytest.raises(ValueError, match="inject rule own") as raised:
        require_operators(InjectSpec(name="mixed", rules=(rule,)))
    assert says in str(raised.value)


def test_what_has_experts_of_one_precision_refuses_such_rules() -> None:
    asked = requested(mixed(LATE, EARLY))
    assert not unsupported(asked)
    alone = replace(cell(MODEL, layer(), **FUSED), inject=mixed(LATE, EARLY))
    assert "workload.phase=layer" in unsupported(alone)
    placed = requested(mixed(LATE, EARLY), roles="split", placement=PLACED)
    assert unsupported(placed).startswith("inject=mixed: ")
    narrow = replace(requested(mixed(LATE, EARLY, "q4_0")), model=tiny_model(moe_intermediate_size=48))
    assert "widths must be multiples of 32" in unsupported(narrow)
