"""Rules that give linear layers of the lean device role a precision of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ktbench.engine.dense import DenseMatrix, PackedLinear
from ktbench.engine.generate import Generator, open_generator
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.serving.engine import BatchEngine, open_serving
from ktbench.run.check import check
from ktbench.spec.cells import plan_cells
from ktbench.spec.engine import ServingSpec
from ktbench.spec.inject import InjectRule, InjectSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.step.memory import MachineMemory, estimate_memory
from ktbench.spec.support import unsupported
from ktbench.spec.sweep import SweepSpec
from ktbench.spec.weights import Precision, dense_bytes
from tests.engine.engines import FUSED, LEAN, cell, engine_for, logits, needs_vector
from tests.engine.serving.serving import HOST, SMALL, answers, drawn
from tests.engine.tiny import EXPERTS, decode, prefill, tiny_model

pytestmark = needs_vector()
# Every token goes to all experts, so that no router chooses others where a layer rounds otherwise.
MODEL = tiny_model("qwen2_57b_a14b", num_hidden_layers=3, num_experts_per_tok=EXPERTS)
WORK = decode(batch=3)
LAST = r"model\.layers\.2\..*"
HEAD = "lm_head"
VALUES = r".*\.v_proj"
ALL = ".*"


def mixed(own: str, precision: Precision = "int8") -> InjectSpec:
    """The rules `lean` with the linear layers whose name matches `own` in a precision."""
    (linears,) = [rule for rule in LEAN.rules if rule.operator == "linear"]
    kept = tuple(rule for rule in LEAN.rules if rule is not linears)
    named = InjectRule(
        name="own",
        module=f"(?=(?:{own})$){linears.module}",
        class_name="Linear",
        operator="linear",
        args={"precision": precision},
    )
    others = replace(linears, module=f"(?!(?:{own})$){linears.module}", optional=True)
    return InjectSpec(name="mixed", rules=(*kept, named, others))


def requested(
    inject: InjectSpec = LEAN,
    dense: Precision = "bf16",
    model: ModelSpec = MODEL,
    work: WorkloadSpec = WORK,
    **engine: Any,
) -> RunSpec:
    one = cell(model, work, device_precision=dense, **FUSED, packed_dense=True, **engine)
    return replace(one, inject=inject)


def linears(system: HybridEngine | Generator | BatchEngine) -> dict[str, PackedLinear]:
    """By the names that they have in Transformers."""
    found = system._components.network.named_modules()
    return {name.replace(".original", ""): one for name, one in found if isinstance(one, PackedLinear)}


def matrices(layers: dict[str, PackedLinear]) -> set[DenseMatrix]:
    return {layer.projection.matrix for layer in layers.values()}


def held(layer: PackedLinear) -> Tensor:
    """[N, K] float32: its rows of the matrix that it shares with its siblings."""
    rows = torch.from_numpy(layer.projection.matrix.packed.read())
    return rows.split(list(layer.projection._widths))[layer._number]


@cache
def alone(dense: Precision) -> HybridEngine:
    """All linear layers in one precision."""
    return engine_for(requested(dense=dense))


def joined(own: str, precision: Precision, others: Precision, work: WorkloadSpec) -> list[Tensor]:
    """Logits of a new engine in `others` with the layers named `own` of the one in `precision`, put in by hand."""
    system, source = engine_for(requested(dense=others)), linears(engine_for(requested(dense=precision)))
    mine, host = linears(system), system._components.device
    assert host is not None
    for name in named_in(mine, own):
        mine[name].projection = source[name].projection
        mine[name].projection.matrix.host = host  # which records the calls
    return logits(system, requested(dense=others, work=work))


def named_in(layers: dict[str, PackedLinear], own: str) -> Iterator[str]:
    rule = InjectRule(name="own", operator="linear", module=own)
    return (name for name in layers if rule.matches(name, "Linear"))


@pytest.mark.parametrize(
    ("own", "precision", "others", "work"),
    [
        (LAST, "int8", "bf16", WORK),
        (LAST, "bf16", "int4_g32", prefill(batch=2)),
        (HEAD, "int8", "bf16", WORK),
    ],
    ids=["last layer", "last layer, prefill", "head"],
)
def test_layers_that_a_rule_matches_are_packed_in_its_precision_and_the_others_as_requested(
    own: str, precision: Precision, others: Precision, work: WorkloadSpec
) -> None:
    """Against engines of one precision, whose layers are put together by hand."""
    asked = requested(mixed(own, precision), others, work=work)
    system = engine_for(asked)
    seen = logits(system, asked)
    layers, mine = linears(system), set(named_in(linears(system), own))
    assert {name for name, one in layers.items() if one.projection.matrix.packed.precision == precision} == mine
    assert mine
    assert check(system.observe(), system.reference, asked.tolerance).outcome is Outcome.OK
    assert all(map(torch.equal, seen, joined(own, precision, others, work)))
    for wrong in (precision, others):
        assert not any(map(torch.equal, seen, logits(alone(wrong), requested(dense=wrong, work=work))))


@pytest.mark.parametrize(
    ("own", "precision"), [(VALUES, "int8"), (f"{VALUES}|{HEAD}|{LAST}", "q4_0"), (ALL, "int4_g32")]
)
def test_every_layer_holds_what_it_holds_where_all_have_its_precision(own: str, precision: Precision) -> None:
    """Even where projections of one input differ, which then share no matrix."""
    asked = requested(mixed(own, precision))
    system = engine_for(asked)
    logits(system, asked)
    layers = linears(system)
    mine = set(named_in(layers, own))
    for name, layer in layers.items():
        assert torch.equal(held(layer), held(linears(alone(precision if name in mine else "bf16"))[name])), name


def test_projections_of_several_precisions_give_what_each_gives_alone() -> None:
    """In int8 a product has the same sums, whether it is one of its own or a part of a larger one."""
    asked = requested(mixed(VALUES))
    system = engine_for(asked)
    logits(system, asked)
    layers = linears(system)
    x = torch.randn(3, MODEL.shape.hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    for name, layer in layers.items():
        if layer.in_features == x.shape[1]:
            source = linears(alone("int8" if name.endswith("v_proj") else "bf16"))[name]
            together, number = source.projection, source._number
            expected = together.matrix(x).split(list(together._widths), dim=-1)[number]
            assert torch.equal(layer(x), expected), name


def test_a_precision_that_is_that_of_the_request_changes_nothing() -> None:
    asked = requested(mixed(VALUES, "bf16"))
    system = engine_for(asked)
    assert all(map(torch.equal, logits(system, asked), logits(alone("bf16"), requested())))
    assert len(matrices(linears(system))) == len(matrices(linears(alone("bf16"))))


def test_rows_that_are_no_whole_number_of_blocks_stay_in_bf16() -> None:
    """The shared expert's output has 48 inputs, blocks have 32."""
    system = engine_for(requested(mixed(ALL, "q4_0")))
    found = {one.in_features % 32 == 0: one.projection.matrix.packed.precision for one in linears(system).values()}
    assert found == {True: "q4_0", False: "bf16"}


def weight_bytes(system: HybridEngine, asked: RunSpec) -> int:
    system.configure(asked)
    work = system.work()
    assert work is not None
    return work.weight_bytes


def test_work_counts_every_layer_in_its_precision() -> None:
    """Of engines of one precision, those of the last layer take each other's place."""
    last = {}
    for precision in ("bf16", "int8"):
        layers = linears(alone(precision))  # type: ignore[arg-type]
        found = matrices({name: layers[name] for name in named_in(layers, LAST)})
        last[precision] = sum(matrix.packed.nbytes for matrix in found)
    asked = requested(mixed(LAST))
    expected = weight_bytes(alone("bf16"), requested()) - last["bf16"] + last["int8"]
    assert weight_bytes(engine_for(asked), asked) == expected
    assert last["int8"] < 0.7 * last["bf16"]


def test_the_plan_counts_the_largest_precision() -> None:
    def dense(spec: RunSpec) -> int:
        return estimate_memory(plan_cells(spec, SweepSpec()), MachineMemory()).dense

    assert dense(requested(mixed(HEAD, "int8"))) == dense_bytes(MODEL.shape, "bf16")
    assert dense(requested(mixed(HEAD, "int8"), "int4_g32")) == dense_bytes(MODEL.shape, "int8")


def test_experts_are_held_to_the_error_of_their_own_precision() -> None:
    assert not requested(mixed(HEAD, "int4_g32")).is_quantised
    assert not unsupported(requested(mixed(HEAD)))


def test_cells_without_the_lean_role_run_the_original_modules() -> None:
    base = replace(cell(MODEL, decode()), inject=mixed(ALL))
    assert all(
        map(torch.equal, logits(engine_for(base), base), logits(engine_for(plain := cell(MODEL, decode())), plain))
    )


def test_evaluations_and_served_requests_run_the_same_weights() -> None:
    asked = requested(mixed(rf"{LAST}|{HEAD}", "int4_g32"), serving=ServingSpec(**SMALL))
    system = engine_for(asked)
    logits(system, asked)
    expected = linears(system)
    served = open_serving(asked, HOST)
    assert all(len(answer) == 4 for answer in answers(served, drawn([5, 9]), max_new=4))
    for opened in (open_generator([asked], HOST), served):
        found = linears(opened)
        assert found.keys() == expected.keys()
        assert all(torch.equal(held(found[name]), held(expected[name])) for name in expected)


def test_mixed_layers_are_kept_in_a_folder_and_mapped_with_the_same_rules_alone(tmp_path: Path) -> None:
    kept = replace(MODEL, packed=str(tmp_path))
    asked = requested(mixed(LAST), model=kept)
    expected = logits(engine_for(requested(mixed(LAST))), requested(mixed(LAST)))
    for _ in range(2):
        assert all(map(torch.equal, logits(engine_for(asked), asked), expected))
    with pytest.raises(ValueError, match="linear-bf16 differs in its injection rules"):
        engine_for(requested(mixed(HEAD), model=kept))
