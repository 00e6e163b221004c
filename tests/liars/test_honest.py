"""No false alarm: what does its work passes every check, in every round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ktbench.engine.protocol import HostRole
from ktbench.run.messages import RecordIds
from ktbench.run.session import Session
from ktbench.run.worker_process import open_system
from ktbench.spec.engine import EngineSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Cell, Outcome
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.wire import spec_id
from tests.engine.engines import LEAN
from tests.engine.tiny import decode, layer, prefill, spec, tiny_model
from tests.fake import FakeRoofs

WORK = {
    "layer": layer(batch=3),
    "long layer": layer(batch=96),
    "decode": decode(2),
    "prefill": prefill(2),
    "chunks": prefill(2, chunk=5),
    "padded": decode(3, shortest=4),
}
OURS = {
    "base": {},
    "+a": {"avx2": True},
    "+a+d+l": {"avx2": True, "dynamic": True, "packed_dense": True},
    "+a deferral=2": {"avx2": True, "deferral": 2},
    "+a skipping=1": {"avx2": True, "skipping": 1},
}
PRECISIONS = ("bf16", "int8", "q4_0", "fp8")


def ours(phase: str, arm: str, precision: str) -> RunSpec:
    of_model = tiny_model(hidden_size=128, moe_intermediate_size=128)
    requested = replace(spec(of_model, WORK[phase]), precision=precision)  # type: ignore[arg-type]
    return replace(requested, engine=EngineSpec(threads=1, **OURS[arm]), inject=LEAN)  # type: ignore[arg-type]


def plain(phase: str, implementation: str) -> RunSpec:
    peer = PeerSpec(implementation=implementation, tune_s=0)  # type: ignore[arg-type]
    return replace(spec(tiny_model(), WORK[phase]), system="transformers", peer=peer)


def require_no_alarm(requested: RunSpec, rounds: int) -> None:
    sitting = Session(
        system=open_system([requested], HostRole(cores=1)),
        roofs=FakeRoofs(),  # type: ignore[arg-type]
        ids=RecordIds(code_id="code", env_id="env"),
    )
    cell = Cell(label=requested.label, spec=requested, spec_id=spec_id(requested))
    for number in range(rounds):
        record = sitting.trial(cell, number)
        assert record.outcome is Outcome.OK, f"round {number}: {record.why}"
    compared = record.compared
    assert compared is not None
    assert (compared.experts, compared.steps) == (compared.of_experts, min(rounds, compared.of_steps))


def is_there(phase: str, arm: str) -> bool:
    """Whether a feature has anything to do in a phase."""
    if phase in ("layer", "long layer"):
        return arm in ("base", "+a")
    return arm not in ("+a deferral=2", "+a skipping=1") or WORK[phase].phase == "decode"


SHORT = [
    ("decode", "+a+d+l", "q4_0"),
    ("decode", "+a deferral=2", "bf16"),
    ("prefill", "base", "bf16"),
    ("layer", "+a", "int8"),
]
LONG = [
    (phase, arm, precision)
    for phase in WORK
    for arm in OURS
    for precision in PRECISIONS
    if is_there(phase, arm) and not (arm == "base" and precision != "bf16")
]


@pytest.mark.parametrize(("phase", "arm", "precision"), SHORT)
def test_the_engine_raises_no_alarm(phase: str, arm: str, precision: str) -> None:
    require_no_alarm(ours(phase, arm, precision), 6)


@pytest.mark.parametrize("phase", ["layer", "decode"])
def test_plain_transformers_raises_no_alarm(phase: str) -> None:
    require_no_alarm(plain(phase, "eager"), 6)


@pytest.mark.thorough
@pytest.mark.parametrize(("phase", "arm", "precision"), LONG)
def test_the_engine_raises_no_alarm_in_200_rounds(phase: str, arm: str, precision: str) -> None:
    require_no_alarm(ours(phase, arm, precision), 200)


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("phase", WORK)
def test_plain_transformers_raises_no_alarm_in_200_rounds(phase: str, implementation: str) -> None:
    require_no_alarm(plain(phase, implementation), 200)
