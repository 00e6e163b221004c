"""One MoE layer run by plain Transformers' implementations: the eager module's output, checks, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ktbench.engine.layer import LayerSystem
from ktbench.engine.load_layer import load_layer
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.transformers.layer import TransformersLayer, open_layer
from ktbench.run.check import check, check_the_check
from ktbench.spec.peers import IMPLEMENTATIONS, PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.tiny import PACKABLE, layer, run, spec, tiny_model

pytestmark = pytest.mark.peers

ONE = HostRole(cores=1)
LAYER_BYTES = 2 * 8 * 3 * 64 * 32


def cell_spec(model: ModelSpec, work: WorkloadSpec, implementation: Any = "grouped_mm", **changes: Any) -> RunSpec:
    requested: dict[str, Any] = {"system": "transformers", "peer": PeerSpec(implementation=implementation)} | changes
    return replace(spec(model, work), **requested)


def ready(work: WorkloadSpec, implementation: Any, name: str = "qwen3_30b_a3b", host: HostRole = ONE) -> LayerSystem:
    requested = cell_spec(tiny_model(name), work, implementation)
    system = open_layer(requested.model, host)
    system.configure(requested)
    return system


@pytest.mark.parametrize("name", PACKABLE)
def test_every_implementation_gives_what_the_eager_module_gives(name: str) -> None:
    base, work = load_layer(tiny_model(name), host=ONE), layer(batch=9)
    base.configure(spec(base.model, work))
    truth = run(base, 3)
    system = ready(work, "eager", name)
    for implementation in IMPLEMENTATIONS:
        system.configure(cell_spec(system.model, work, implementation))
        seen = run(system, 3)
        assert [b.module.config._experts_implementation for b in experts(system)] == [implementation]
        for one, expected in zip(seen, truth, strict=True):
            # Where the sum over experts is rounded is each implementation's own.
            assert (one - expected).norm() < (0.01 if implementation != "eager" else 1e-9) * expected.norm()


def experts(system: LayerSystem) -> list[Any]:
    assert isinstance(system._held, TransformersLayer)
    return list(system._held._experts)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_observation_passes_the_check_and_its_mutants_do_not(implementation: str) -> None:
    system = ready(layer(batch=30), implementation)
    run(system, 3)
    seen = system.observe()
    assert check(seen, system.reference, tolerance=0.01).outcome is Outcome.OK
    assert check_the_check(seen, system.reference, tolerance=0.01) == ""
    assert not system.counters()


def test_copies_take_turns_and_are_those_of_base() -> None:
    work = layer(batch=4, steps=5, active_experts=4)
    host = HostRole(cores=1, cache_bytes=2 * LAYER_BYTES)
    system, base = ready(work, "grouped_mm", host=host), load_layer(tiny_model(), host=host)
    base.configure(spec(base.model, work))
    assert len(experts(system)) == 3
    turns = [experts(system).index(prepared.backend) for prepared in system._steps]
    assert turns[0] == turns[3]
    assert set(turns) == {0, 1, 2}
    for one, other in zip(system._steps, base._steps, strict=True):
        assert torch.equal(one.hidden, other.hidden)
        assert torch.equal(one.routing.gates, other.routing.gates)
        same = held_by(base)[experts(system).index(one.backend)]
        assert torch.equal(one.backend.matrices(3).down, same.matrices(3).down)
    assert system.work() == base.work()


def held_by(base: LayerSystem) -> list[Any]:
    held: Any = base._held
    return list(held.original._backends)


def test_notes_tell_what_runs() -> None:
    (described,) = ready(layer(), "batched_mm").notes()
    assert "experts_implementation=batched_mm" in described
    assert described.endswith("on threads=1")


def test_shapes_that_a_kernel_refuses_are_unsupported() -> None:
    requested = cell_spec(tiny_model(moe_intermediate_size=36), layer())
    system = open_layer(requested.model, ONE)
    with pytest.raises(Unsupported, match="experts_implementation=grouped_mm is refused: strides"):
        system.configure(requested)


def test_what_it_cannot_run_is_named() -> None:
    requested = cell_spec(tiny_model(), layer(), precision="int8")
    with pytest.raises(Unsupported, match="precision=int8"):
        open_layer(requested.model, ONE).configure(requested)


def test_wrong_use_is_named() -> None:
    requested = cell_spec(tiny_model(), layer())
    system = open_layer(requested.model, ONE)
    with pytest.raises(ValueError, match=r"engine\.threads=2: allowed are 1 to 1"):
        system.configure(replace(requested, engine=replace(requested.engine, threads=2)))
    system.close()
    with pytest.raises(ValueError, match="were released"):
        system.configure(requested)
