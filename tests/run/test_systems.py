"""The system that cells ask for, and a layer taken through whole turns."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.layer import LayerSystem
from ktbench.engine.protocol import HostRole
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session
from ktbench.run.worker_process import open_system
from ktbench.spec.record import Cell, Outcome, RoofSample
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import spec_id
from tests.engine.engines import FUSED, VECTOR, needs_vector
from tests.fake import FakeRoofs
from tests.tiny import tiny_spec


def layer_spec(precision: str = "bf16", **engine: Any) -> RunSpec:
    return tiny_spec(phase="layer", precision=precision, workload={"batch": 6}, **({"threads": 1} | engine))


def cell(spec: RunSpec) -> Cell:
    return Cell(label=spec.engine.label, spec=spec, spec_id=spec_id(spec))


class NotedRoofs(FakeRoofs):
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str]] = []

    def sample(self, isa: str | None, dtype: str = "bf16") -> RoofSample:
        self.asked.append((isa, dtype))
        return super().sample(isa, dtype)


def turns(specs: list[RunSpec], count: int = 2) -> tuple[list[Outcome], NotedRoofs]:
    roofs, ids = NotedRoofs(), RecordIds(code_id="code", env_id="env")
    session = Session(system=open_system(specs, HostRole(cores=1, cpus=(0,))), roofs=roofs, ids=ids)
    records = [session.trial(cell(spec), number) for number in range(count) for spec in specs]
    assert all(len(record.samples_s) == 3 for record in records), [record.why for record in records]
    return [record.outcome for record in records], roofs


def test_the_phase_decides_the_system() -> None:
    assert isinstance(open_system([layer_spec()], HostRole(cores=1, cpus=(0,))), LayerSystem)
    assert isinstance(open_system([tiny_spec()], HostRole(cores=1, cpus=(0,))), HybridEngine)


def test_a_layer_of_base_is_measured_and_proved() -> None:
    outcomes, roofs = turns([layer_spec()])
    assert outcomes == [Outcome.OK, Outcome.OK]
    assert set(roofs.asked) == {(None, "bf16")}


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bf16"), ("int8", "int8"), ("int4_g32", "int8")])
@needs_vector()
def test_a_fused_layer_uses_the_roof_of_its_arithmetic(precision: str, dtype: str) -> None:
    specs = [layer_spec(precision, **FUSED), layer_spec(precision, **FUSED, dynamic=True)]
    outcomes, roofs = turns(specs)
    assert outcomes == [Outcome.OK] * 4
    assert set(roofs.asked) == {(VECTOR.name, dtype)}


@needs_vector()
def test_base_and_fused_of_one_worker_share_a_system() -> None:
    outcomes, _ = turns([layer_spec(), layer_spec(**FUSED)])
    assert outcomes == [Outcome.OK] * 4


@needs_vector()
def test_many_nodes_are_domains() -> None:
    with pytest.raises(ValueError, match="domains=2: intermediate=32 has room for 1"):
        open_system([layer_spec(**FUSED)], HostRole(cores=2, cpus=(0, 1), nodes=(0, 1)))
