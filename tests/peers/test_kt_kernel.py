"""kt-kernel as a peer of the layer phase: its output against float64, its rotation, its settings and their tuning."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.layer import LayerSystem
from ktbench.engine.load_layer import LayerWeights, load_layer
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.kt_kernel.layer import KtLayer
from ktbench.peers.kt_kernel.library import KtExperts, as_stored, settings_for
from ktbench.peers.tuning import Tuned
from ktbench.run.check import check, check_the_check
from ktbench.run.worker_process import open_peer
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Outcome
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.arrays import exact_output, relative
from tests.engine.engines import peer_lacks
from tests.engine.tiny import layer, run, spec, tiny_model

pytestmark = pytest.mark.peers

INSTALLED = importlib.util.find_spec("kt_kernel") is not None
needs_kt_kernel = pytest.mark.skipif(not INSTALLED, reason="kt-kernel is not installed: nox -s peers")
ONE = HostRole(cores=1)
# How far the output may be from the bf16 weights that kt-kernel was given.
LOST = {"bf16": 0.01, "int8": 0.04, "int4_g32": 0.4}
ROUNDED_LACK = peer_lacks("kt-kernel", "int8")
needs_avx512 = pytest.mark.skipif(ROUNDED_LACK != "", reason=ROUNDED_LACK)
FORMATS = [pytest.param(name, marks=() if name == "bf16" else needs_avx512) for name in LOST]
WIDTH = 256
LAYER_BYTES = 2 * 8 * 3 * WIDTH * WIDTH


def model(**changes: Any) -> ModelSpec:
    return tiny_model(**({"hidden_size": WIDTH, "moe_intermediate_size": WIDTH} | changes))


def cell_spec(work: WorkloadSpec, precision: Any = "bf16", tune_s: float = 0, **changes: Any) -> RunSpec:
    requested = spec(model(**changes), work)
    return replace(requested, system="kt-kernel", precision=precision, peer=PeerSpec(tune_s=tune_s))


def open_layer(cells: list[RunSpec], host: HostRole) -> LayerSystem:
    system = open_peer(cells, host)
    assert isinstance(system, LayerSystem)
    return system


def ready(requested: RunSpec, host: HostRole = ONE) -> LayerSystem:
    system = open_layer([requested], host)
    system.configure(requested)
    return system


def exact(requested: RunSpec, prepared: Any, copy: int) -> NDArray[np.float64]:
    """The layer's output in float64 for the bf16 weights that every system is given."""
    return exact_output(LayerWeights.of(requested.model).passing(copy), prepared)


@needs_kt_kernel
@pytest.mark.parametrize("precision", FORMATS)
def test_output_is_that_of_the_weights_as_they_are_stored(precision: str) -> None:
    works = (layer(batch=1, steps=2), layer(batch=7, steps=2, routing="zipf"), layer(batch=40, steps=2))
    cells = [cell_spec(work, precision) for work in works]
    system = open_layer(cells, ONE)
    for requested in cells:
        system.configure(requested)
        outputs = run(system, 2)
        for output, prepared in zip(outputs, system._steps, strict=True):
            assert relative(output.numpy(), exact(requested, prepared, 0)) < LOST[precision]
        seen = system.observe()
        assert np.array_equal(outputs[-1].numpy(), system.logits())
        verdict = check(seen, system.reference, requested.tolerance)
        assert verdict.outcome is Outcome.OK, verdict.why
        assert verdict.error is not None
        assert verdict.error > 0
        assert check_the_check(seen, system.reference, requested.tolerance) == ""


@needs_kt_kernel
@pytest.mark.parametrize("precision", FORMATS)
def test_every_setting_gives_right_output(precision: str) -> None:
    requested = cell_spec(layer(batch=20), precision)
    requested = replace(requested, engine=replace(requested.engine, threads=None))
    system = open_layer([requested], HostRole(cores=2))
    assert isinstance(system._held, KtLayer)
    held = system._held._held[2]
    assert len(held) == 3
    for setting in held:
        system._held._tuned[requested.workload, 2] = Tuned(settings=setting)
        system.configure(requested)
        run(system, 3)
        verdict = check(system.observe(), system.reference, requested.tolerance)
        assert verdict.outcome is Outcome.OK, (setting, verdict.why)


@needs_kt_kernel
def test_copies_and_tokens_are_those_of_base() -> None:
    requested = cell_spec(layer(batch=4, steps=5, active_experts=4))
    host = HostRole(cores=1, cache_bytes=2 * LAYER_BYTES)
    system, base = ready(requested, host), load_layer(requested.model, host=host)
    base.configure(replace(requested, system="ktbench"))
    outputs = run(system, 5)
    base.start()
    turns = [prepared.backend for prepared in system._steps]
    assert turns[0] is turns[3]
    assert len({id(backend) for backend in turns}) == 3
    for output, prepared, other in zip(outputs, system._steps, base._steps, strict=True):
        assert torch.equal(prepared.hidden, other.hidden)
        assert torch.equal(prepared.routing.gates, other.routing.gates)
        assert isinstance(prepared.backend, KtExperts)
        number = int(prepared.backend.store.name.rpartition(".")[2])  # type: ignore[attr-defined]
        assert relative(output.numpy(), exact(requested, prepared, number)) < 0.01
    assert system.work() == base.work()


@needs_kt_kernel
@needs_avx512
def test_it_is_tuned_once_for_a_workload_and_says_so() -> None:
    requested = cell_spec(layer(), "int4_g32", tune_s=0.3)
    requested = replace(requested, engine=replace(requested.engine, threads=None))
    system = ready(requested, HostRole(cores=2))
    tuned, quantised = system.notes()
    assert "tuned in " in tuned
    assert " in 1 pool" in tuned
    assert "quantises to int4 itself" in quantised
    system.configure(requested)
    assert system.notes() == (tuned, quantised)
    assert not system.counters()


@needs_kt_kernel
def test_what_it_cannot_run_is_named() -> None:
    held = "has no AMXInt8_MOE" if ROUNDED_LACK else "cannot hold int8 experts of hidden=64 and expert width 32"
    with pytest.raises(Unsupported, match=held):
        open_peer([cell_spec(layer(), "int8", hidden_size=64, moe_intermediate_size=32)], ONE)
    with pytest.raises(Unsupported, match="precision=q8_0"):
        open_peer([cell_spec(layer(), "q8_0")], ONE)
    gelu = replace(cell_spec(layer()), model=tiny_model("gpt_oss_20b"))
    with pytest.raises(Unsupported, match="without biases"):
        open_peer([gelu], ONE)
    with pytest.raises(Unsupported, match="NUMA node from 0 on"):
        open_peer([cell_spec(layer())], HostRole(cores=1, nodes=(1,)))


@needs_kt_kernel
def test_wrong_use_is_named() -> None:
    requested = cell_spec(layer(batch=2))
    system = ready(requested)
    with pytest.raises(ValueError, match=r"engine\.threads=2: allowed are 1 to 1"):
        system.configure(replace(requested, engine=replace(requested.engine, threads=2)))
    with pytest.raises(ValueError, match="room for 2 tokens, this call has 3"):
        system.configure(replace(requested, workload=layer(batch=3)))
    system.close()
    with pytest.raises(ValueError, match="no weights were loaded"):
        system.configure(requested)


@pytest.mark.skipif(INSTALLED, reason="kt-kernel is installed")
def test_without_the_package_it_says_how_to_get_it() -> None:
    with pytest.raises(Unsupported, match="nox -s peers"):
        open_peer([cell_spec(layer())], ONE)


@given(st.integers(1, 256), st.integers(1, 8), st.integers(1, 2**36))
def test_settings_use_all_cores_or_leave_one(cores: int, nodes: int, copies_bytes: int) -> None:
    if cores < nodes:
        with pytest.raises(Unsupported, match=f"a worker on each of {nodes} NUMA nodes"):
            settings_for(cores, range(nodes), copies_bytes)
        return
    found = settings_for(cores, range(nodes), copies_bytes)
    assert len(found) == len(set(found)) == 1 or len(found) * copies_bytes <= 8 * 2**30
    for setting in found:
        assert sum(setting.workers) in (cores, cores - 1)
        assert max(setting.workers) - min(setting.workers) <= 1
        assert min(setting.workers) > 0
        assert set(setting.nodes) == set(range(nodes))


def steps_off(matrix: torch.Tensor, stored: torch.Tensor, most: int) -> torch.Tensor:
    """Distance in steps of the coarsest grid that has `most` steps on either side of 0."""
    return (stored - matrix).abs() * most / matrix.abs().amax(dim=1, keepdim=True)


@given(st.integers(0, 2**32 - 1), st.sampled_from([("int8", 127), ("int4", 7)]), st.sampled_from([1, 2]))
def test_stored_weights_are_the_nearest_of_their_row(seed: int, kind: tuple[str, int], pools: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    gate, up, down = (torch.randn(shape, generator=drawn).bfloat16() for shape in ((8, 64), (8, 64), (64, 8)))
    name, most = kind
    stored = as_stored(ExpertMatrices(gate=gate, up=up, down=down), name, pools)
    # Rounding to int8 first costs int4 up to half of a sixteenth step.
    worst = 0.5 + (0.5 / 16 if name == "int4" else 0) + 1e-4
    pairs = [(gate, stored.gate), (up, stored.up)]
    pairs += list(zip(down.chunk(pools, dim=1), stored.down.chunk(pools, dim=1), strict=True))
    for given_one, kept in pairs:
        assert steps_off(given_one.float(), kept, most).max() <= worst
        for row in kept:
            assert len(row.unique()) <= 2 * most + 1


def test_rows_of_zeros_stay_zeros() -> None:
    zeros = ExpertMatrices(gate=torch.zeros(2, 4), up=torch.zeros(2, 4), down=torch.zeros(4, 2))
    for kind in ("bf16", "int8", "int4"):
        assert not as_stored(zeros, kind, 2).down.any()
        assert not as_stored(zeros, kind, 1).gate.any()
