"""One MoE layer alone: its output against float64, its check, and the rotation of its cache-cold replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.engine.experts import OriginalExperts
from ktbench.engine.layer import CacheColdReplicas, LayerSystem
from ktbench.engine.load import expert_positions
from ktbench.engine.load_layer import EngineLayer, load_layer
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.engine.synthetic import TransientExperts, WeightPool, skeleton
from ktbench.run.check import check, check_the_check
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from tests.engine.arrays import exact_output, relative
from tests.engine.tiny import DISTINCT, PACKABLE, layer, run, spec, tiny_model

ONE = HostRole(cores=1)
LAYER_BYTES = 2 * 8 * 3 * 64 * 32


def ready(workload: WorkloadSpec, name: str = "qwen3_30b_a3b", host: HostRole = ONE) -> LayerSystem:
    model = tiny_model(name)
    system = load_layer(model, host=host)
    system.configure(spec(model, workload))
    return system


@cache
def pool(seed: int) -> WeightPool:
    return WeightPool(seed, 0.02)


_DRAWN: dict[tuple[str, int], TransientExperts] = {}


def exact(model: ModelSpec, prepared: Any, copy: int = 0) -> NDArray[np.float64]:
    """The layer's output in float64, from weights drawn again."""
    key = repr(model), copy
    if key not in _DRAWN:
        network = skeleton(model)
        name = expert_positions(network)[0][0]
        _DRAWN[key] = TransientExperts(network.get_submodule(name), f"{name}.{copy}", pool(model.seed))
    return exact_output(_DRAWN[key], prepared)


@pytest.mark.parametrize("routing", ["balanced", "zipf", "concentrated"])
@pytest.mark.parametrize("name", PACKABLE)
def test_base_agrees_with_float64(name: str, routing: Any) -> None:
    system = ready(layer(batch=5, routing=routing), name)
    outputs = run(system, 3)
    for output, prepared in zip(outputs, system._steps, strict=True):
        assert relative(output.numpy(), exact(system.model, prepared)) < 0.01


@pytest.mark.parametrize("name", DISTINCT)
def test_base_runs_the_experts_of_transformers(name: str) -> None:
    system = ready(layer(batch=5), name)
    outputs = run(system, 3)
    with torch.inference_mode():
        for output, prepared in zip(outputs, system._steps, strict=True):
            backend = prepared.backend
            assert isinstance(backend, OriginalExperts)
            assert type(backend.module).__module__.startswith("transformers.")
            assert torch.equal(output, backend.module(prepared.hidden, prepared.routing.ids, prepared.routing.gates))


def test_copies_differ_and_take_turns() -> None:
    system = ready(layer(batch=4, steps=5, active_experts=4), host=HostRole(cores=1, cache_bytes=2 * LAYER_BYTES))
    assert layer_bytes(system) == 3 * LAYER_BYTES
    outputs = run(system, 5)
    turns = [p.backend for p in system._steps]
    assert turns[0] is turns[3]
    assert len({id(backend) for backend in turns}) == 3
    experts = [set(p.routing.ids.flatten().tolist()) for p in system._steps]
    assert experts[0] | experts[3] == set(range(8))
    assert not experts[0] & experts[3]
    copies = [original(system)._backends.index(backend) for backend in turns]
    for copy, output, prepared in zip(copies, outputs, system._steps, strict=True):
        assert relative(output.numpy(), exact(system.model, prepared, copy)) < 0.01


def original(system: LayerSystem) -> CacheColdReplicas:
    assert isinstance(system._held, EngineLayer)
    assert system._held.original is not None
    return system._held.original


def layer_bytes(system: LayerSystem) -> int:
    modules = [backend.module for backend in original(system)._backends]  # type: ignore[attr-defined]
    return sum(p.nbytes for module in modules for p in module.parameters())


def test_every_setting_and_every_turn_spreads_tokens_alike() -> None:
    system = ready(layer(batch=6, routing="zipf"))
    loads = []
    for _ in range(3):
        system.start()
        loads.append([sorted(np.bincount(p.routing.ids.numpy().ravel(), minlength=8)) for p in system._steps])
    assert all(np.array_equal(loads[0], load) for load in loads)


def test_each_step_has_other_tokens_and_writes_its_output() -> None:
    system = ready(layer(batch=4))
    outputs = run(system, 3)
    assert all(torch.isfinite(output).all() for output in outputs)
    hidden = [p.hidden for p in system._steps]
    assert all(h.dtype == torch.bfloat16 and h.shape == (4, 64) for h in hidden)
    for i in (0, 1):
        assert not torch.isclose(outputs[i], outputs[i + 1]).any(dim=1).all()
        assert not torch.equal(hidden[i], hidden[i + 1])
    assert torch.cat(hidden).float().std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("workload", [layer(batch=1), layer(batch=40), layer(batch=30, routing="zipf")])
def test_observation_passes_the_check_and_its_mutants_do_not(workload: WorkloadSpec) -> None:
    system = ready(workload)
    timed = run(system, workload.steps)[-1]
    seen = system.observe()
    assert np.array_equal(timed.numpy(), system.logits())
    assert len(seen) == 1
    assert len(seen[0].hidden) == min(workload.batch, 12)
    verdict = check(seen, system.reference, tolerance=0.01)
    assert verdict.outcome is Outcome.OK
    assert check_the_check(seen, system.reference, tolerance=0.01) == ""


def test_observed_tokens_share_few_experts_and_change() -> None:
    model = tiny_model(num_experts=64)
    system = load_layer(model, host=ONE)
    system.configure(spec(model, layer(batch=200, routing="zipf")))
    run(system, 3)
    first, second = system.observe()[0], system.observe()[0]
    assert len(np.unique(first.ids)) <= 2 * 4
    assert not np.array_equal(first.hidden[0], second.hidden[0])
    with pytest.raises(ValueError, match="last observation"):
        system.reference(first)


def test_reference_is_that_of_the_very_routing() -> None:
    system = ready(layer(batch=3))
    run(system, 3)
    seen = system.observe()[0]
    truth = system.reference(seen)
    doubled = system.reference(replace(seen, gates=2 * seen.gates))
    assert np.allclose(doubled, 2 * truth)
    assert relative(truth, exact(system.model, system._steps[-1])) < 1e-5


def test_work_of_base_is_that_of_bf16() -> None:
    system = ready(layer(batch=4, active_experts=4))
    run(system, 3)
    work = system.work()
    assert (work.tokens, work.weight_bytes) == (4, 2 * 4 * 3 * 64 * 32)
    assert work.flops == 2 * 4 * 4 * 3 * 64 * 32


def test_recorded_tokens_are_replayed_up_to_the_names_of_experts(tmp_path: Path) -> None:
    tokens = np.array([[[0, 1, 2, 3]], [[0, 1, 6, 7]]], dtype=np.uint8)
    np.savez(tmp_path / "t.npz", decode=tokens)
    system = ready(layer(batch=2, routing="recorded", trace=str(tmp_path / "t.npz")))
    for prepared in system._steps:
        one, other = (set(row) for row in prepared.routing.ids.tolist())
        assert len(one) == len(other) == 4
        assert len(one & other) == 2


def test_what_is_not_there_is_refused() -> None:
    model = tiny_model()
    system = load_layer(model, host=ONE)
    with pytest.raises(ValueError, match="configure comes before"):
        system.start()
    with pytest.raises(ValueError, match="mixtral_8x7b requested.*qwen3_30b_a3b is loaded"):
        system.configure(spec(tiny_model("mixtral_8x7b"), layer()))
    with pytest.raises(ValueError, match="packed expert weights were not kept"):
        system.configure(spec(model, layer(), avx512=True))
    with pytest.raises(ValueError, match=r"engine\.threads=2: allowed are 1 to 1"):
        system.configure(spec(model, layer(), threads=2))
    with pytest.raises(Unsupported, match=r"set workload\.trace"):
        system.configure(spec(model, layer(routing="recorded")))
    with pytest.raises(ValueError, match="no such file"):
        system.configure(spec(model, layer(routing="recorded", trace="nowhere.npz")))
    with pytest.raises(ValueError, match="nothing is left to run"):
        load_layer(model, host=ONE, keep_original=False)
    with pytest.raises(ValueError, match="synthetic weights"):
        load_layer(tiny_model(path="/weights"), host=ONE)


def test_closing_lets_go_of_the_weights() -> None:
    system = ready(layer())
    system.close()
    assert isinstance(system._held, EngineLayer)
    assert system._held.original is None
    with pytest.raises(ValueError, match="configure comes before"):
        system.start()


def uses(copies: int, experts: int, active: int, steps: int) -> list[tuple[int, int]]:
    """(copy, expert) of every use, in order."""
    backends: list[Any] = list(range(copies))
    layer = CacheColdReplicas(backends, experts)
    taken: list[tuple[Any, np.ndarray]] = [layer.take(np.arange(active)[None], active) for _ in range(steps)]
    return [(copy, expert) for copy, ids in taken for expert in ids.ravel().tolist()]


@given(st.integers(1, 4), st.integers(1, 20), st.data())
def test_no_expert_comes_back_before_the_others_were_read(copies: int, experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, experts))
    order = uses(copies, experts, active, steps=3 * copies * -(-experts // active))
    assert set(order) == {(copy, expert) for copy in range(copies) for expert in range(experts)}
    last: dict[tuple[int, int], int] = {}
    for at, use in enumerate(order):
        if use in last:
            between = set(order[last[use] + 1 : at])
            assert use not in between
            least = copies * experts - 1 if experts % active == 0 else copies * (experts - active) - 1
            assert len(between) >= least
        last[use] = at


def test_a_single_copy_is_read_in_a_ring() -> None:
    assert [expert for _, expert in uses(1, 5, 2, 5)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_ranks_keep_their_load() -> None:
    backend: Any = None
    layer = CacheColdReplicas([backend], 8)
    ranks = np.array([[0, 1], [0, 2], [0, 1]])
    for first in (0, 3, 6):
        _, ids = layer.take(ranks, 3)
        assert ids.tolist() == ((ranks + first) % 8).tolist()


def test_no_copy_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one copy"):
        CacheColdReplicas([], 8)
