"""How experts are packed for a spec on the cores that a host role has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ktbench.engine.protocol import HostRole
from ktbench.engine.weight_plan import Packing
from tests.engine.tiny import decode, spec, tiny_model


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
    requested = replace(spec(tiny_model(), decode(), avx512=True, threads=8, **engine), precision="int8")
    assert Packing.of(requested, HostRole(cores=8, nodes=nodes)) == packing
