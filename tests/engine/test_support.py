"""What is refused before anything loads, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.engine.protocol import HostRole
from ktbench.engine.support import unsupported
from ktbench.engine.weight_plan import Packing
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
from tests.engine.tiny import decode, layer, prefill, spec, tiny_model

V = {"avx512": True}
REFUSED: list[tuple[WorkloadSpec, dict[str, Any], str, str]] = [
    (decode(), {}, "int8", "base runs bf16 weights"),
    (prefill(), {}, "int4_g32", "precision=int4_g32 needs +v or +m"),
    (decode(), V | {"cuda_graph": True}, "bf16", "no CUDA graph"),
    (layer(), V | {"cuda_graph": True}, "bf16", "no CUDA graph"),
    (layer(), V | {"deferral": 1}, "bf16", "has the routed experts alone"),
    (layer(), {"skipping": 1}, "bf16", "has the routed experts alone"),
    (layer(routing="recorded"), V, "bf16", "set workload.trace to FILE or FILE:ARRAY"),
    (layer(batch=3, active_experts=8), V, "bf16", "must divide the 12 experts that batch=3 tokens select"),
    (decode(), V | {"numa": True, "domains": 2, "threads": 1}, "bf16", "engine.domains=2 need a thread each"),
]
ALLOWED: list[tuple[WorkloadSpec, dict[str, Any], str]] = [
    (decode(), V, "int8"),
    (prefill(), {"amx": True}, "int4_g128"),
    (decode(), V | {"numa": True, "domains": 2, "threads": 2}, "bf16"),
    (decode(), V | {"numa": True}, "bf16"),
    (layer(), {}, "bf16"),
    (layer(), {}, "int8"),
    (layer(batch=4, active_experts=8), V, "int8"),
    (layer(routing="recorded", trace="file.npz"), V, "bf16"),
]


def cell(workload: WorkloadSpec, engine: dict[str, Any], precision: str, **model: Any) -> RunSpec:
    return replace(spec(tiny_model(**model), workload, **engine), precision=precision)  # type: ignore[arg-type]


@pytest.mark.parametrize(("workload", "engine", "precision", "why"), REFUSED)
def test_reason_in_one_line(workload: WorkloadSpec, engine: dict[str, Any], precision: str, why: str) -> None:
    reason = unsupported(cell(workload, engine, precision))
    assert why in reason
    assert "\n" not in reason


@pytest.mark.parametrize(("workload", "engine", "precision"), ALLOWED)
def test_no_reason(workload: WorkloadSpec, engine: dict[str, Any], precision: str) -> None:
    assert unsupported(cell(workload, engine, precision)) == ""


def test_a_layer_of_a_checkpoint_is_refused() -> None:
    assert "synthetic weights: model.path=/weights" in unsupported(cell(layer(), V, "bf16", path="/weights"))


@pytest.mark.parametrize(
    ("nodes", "engine", "packing"),
    [
        ((0,), {}, Packing(precision="int8")),
        ((0, 2), {}, Packing(precision="int8", domains=2, nodes=(0, 2))),
        ((0,), {"domains": 3}, Packing(precision="int8", domains=3)),
        ((0, 1), {"domains": 4}, Packing(precision="int8", domains=4)),
    ],
)
def test_experts_are_split_as_asked_or_over_the_nodes(
    nodes: tuple[int, ...], engine: dict[str, Any], packing: Packing
) -> None:
    asked = cell(decode(), V | {"threads": 8} | engine, "int8")
    assert Packing.of(asked, HostRole(cores=8, nodes=nodes)) == packing
