"""Experts that live with the device role: the same numbers, whoever serves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.workload.recorded import ActivationProfile, Architecture
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.drawing import covering
from tests.engine.engines import (
    CPUS,
    FUSED,
    PACKED_DENSE,
    TOLERANCE,
    TWO_CORES,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    relative,
    split_cell,
)
from tests.engine.families.plain import build
from tests.engine.prompts import together
from tests.engine.tiny import decode, prefill, run

pytestmark = [needs_vector(), TWO_CORES]
POLICIES = ("uniform", "front_loading", "random", "dynamic", "frequency")


@dataclass(frozen=True)
class Split:
    """A model, its engine on split roles, and a profile of it."""

    model: ModelSpec
    system: HybridEngine
    profile: Path

    def placed(self, policy: str, ratio: float, **options: Any) -> PlacementSpec:
        profile = str(self.profile) if policy == "frequency" else None
        return PlacementSpec(policy=policy, ratio=ratio, profile=profile, **options)  # type: ignore[arg-type]

    def cell(self, workload: WorkloadSpec, **engine: Any) -> RunSpec:
        return split_cell(self.model, workload, **engine)

    def logits(self, workload: WorkloadSpec, **engine: Any) -> list[Tensor]:
        return logits(self.system, self.cell(workload, **engine))


def write_profile(path: Path, model: ModelSpec, seed: int = 0) -> Path:
    shape = model.shape
    counts = np.random.default_rng(seed).integers(0, 50, size=(shape.moe_layers, shape.experts))
    architecture = Architecture.of(model)
    ActivationProfile(model=model.name, architecture=architecture, counts=counts, tokens=9, source="drawn").save(path)
    return path


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3"])
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    model = changed(request.param)
    system = engine_for(*(split_cell(model, decode(), packed_dense=lean) for lean in (False, True)), cpus=CPUS)
    yield Split(model, system, write_profile(tmp_path_factory.mktemp("profile") / "tiny.npz", model))
    system.close()


@pytest.mark.parametrize(
    ("policy", "ratio", "lean"),
    covering(product(POLICIES, (0.4, 1.0), (False, True)), lambda policy, ratio, lean: (policy, (ratio, lean))),
)
def test_logits_are_those_of_experts_that_all_live_with_the_host(
    split: Split, policy: str, ratio: float, lean: bool
) -> None:
    for workload in (decode(batch=3, shortest=6), prefill(batch=2)):
        at_host = split.logits(workload, packed_dense=lean)
        assert (
            relative(split.logits(workload, packed_dense=lean, placement=split.placed(policy, ratio)), at_host)
            < TOLERANCE
        )


@PACKED_DENSE
@pytest.mark.parametrize("feature", ["deferral", "skipping"])
def test_deferral_and_skipping_act_on_both_sides(split: Split, feature: str, lean: bool) -> None:
    engine: dict[str, Any] = {"packed_dense": lean, feature: 1}
    at_host = split.logits(decode(batch=3), **engine)
    placed = split.logits(decode(batch=3), placement=split.placed("uniform", 0.5), **engine)
    assert relative(placed, at_host) < TOLERANCE
    assert relative(split.logits(decode(batch=3), packed_dense=lean), at_host) > 0


def moved(system: HybridEngine, requested: RunSpec) -> dict[str, int]:
    """Counts of the steps alone."""
    system.configure(requested)
    before = dict(system.counters())
    run(system, requested.workload.steps)
    return {name: count - before.get(name, 0) for name, count in system.counters().items()}


@PACKED_DENSE
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_the_device_serves_what_was_selected_of_its_experts(split: Split, ratio: float, lean: bool) -> None:
    placement = split.placed("front_loading", ratio)
    workload = decode(batch=3, steps=4, routing="zipf")
    counted = moved(split.system, split.cell(workload, packed_dense=lean, placement=placement))
    residents = split.system._placement
    assert residents is not None
    expected = sum(
        int(residence.at_device[selected.ids].sum())
        for one_pass in split.system.recorded_routing()
        for residence, selected in zip(residents._residences, one_pass, strict=True)
    )
    assert counted["device_experts"] == expected > 0
    assert counted["experts_moved"] == 0


def test_all_on_the_host_counts_no_device_experts(split: Split) -> None:
    assert "device_experts" not in moved(split.system, split.cell(decode()))


@PACKED_DENSE
def test_hot_experts_move_to_the_device_while_steps_run(split: Split, lean: bool) -> None:
    """One expert of every layer takes all tokens: wherever it began, it ends with the device."""
    workload = decode(batch=4, steps=12, routing="concentrated")
    at_host = split.logits(workload, packed_dense=lean)
    placement = split.placed("dynamic", 0.25, every=3 if lean else 2)  # each setting a placement that has not moved yet
    counted = moved(split.system, split.cell(workload, packed_dense=lean, placement=placement))
    still = moved(split.system, split.cell(workload, packed_dense=lean, placement=split.placed("uniform", 0.25)))
    assert counted["experts_moved"] > 0
    assert still["experts_moved"] == 0
    assert relative(split.logits(workload, packed_dense=lean, placement=placement), at_host) < TOLERANCE


def test_workloads_change_under_a_placement(split: Split) -> None:
    """The routers of another workload are recorded without it."""
    placement = split.placed("uniform", 0.5)
    workloads = (decode(batch=2), prefill(batch=2), decode(batch=3))
    seen = [split.logits(workload, placement=placement) for workload in workloads]
    for workload, logits_seen in zip(workloads, seen, strict=True):
        assert relative(logits_seen, split.logits(workload)) < TOLERANCE


def test_base_is_transformers_where_another_cell_with_a_placement_came_first() -> None:
    """The prompt's cache and routing are part of the script, which the first cell of a workload has written."""
    model, workload = changed("qwen3_moe"), decode(batch=2)
    placement = PlacementSpec(policy="uniform", ratio=0.5)
    base = cell(model, workload, threads=None, roles="split")
    placed = split_cell(model, workload, placement=placement)
    system = engine_for(base, placed, cpus=CPUS)
    logits(system, split_cell(model, prefill(), placement=placement))
    system.configure(placed)
    assert all(map(torch.equal, logits(system, base), together(build(model), workload)))


def test_placement_leaves_no_trace(split: Split) -> None:
    before = split.logits(decode(batch=2))
    split.logits(decode(batch=2), placement=split.placed("random", 0.5))
    assert all(map(torch.equal, split.logits(decode(batch=2)), before))


def test_a_profile_of_another_model_is_refused(split: Split, tmp_path: Path) -> None:
    other = changed("mixtral", num_local_experts=4)
    path = write_profile(tmp_path / "other.npz", other)
    placement = PlacementSpec(policy="frequency", ratio=0.5, profile=str(path))
    with pytest.raises(ValueError, match=r"recorded from mixtral, this is (qwen3_moe|deepseek_v3)"):
        split.system.configure(split.cell(decode(), placement=placement))


def test_frequency_places_what_was_counted_most(split: Split) -> None:
    split.system.configure(split.cell(decode(), placement=split.placed("frequency", 0.25)))
    counts = np.load(split.profile)["counts"]
    residents = split.system._placement
    assert residents is not None
    at_device = torch.stack([residence.at_device for residence in residents._residences]).numpy()
    assert counts[at_device].min() >= counts[~at_device].max()
    assert at_device.sum() == round(0.25 * counts.size)


def test_placement_needs_the_fused_operator(split: Split) -> None:
    with pytest.raises(ValueError, match="on shared cores nothing is gained"):
        cell(split.model, decode(), **FUSED, placement=split.placed("uniform", 0.5))
    with pytest.raises(Exception, match=r"engine\.placement\.policy=uniform"):
        split.system.configure(
            cell(split.model, decode(), threads=None, roles="split", placement=split.placed("uniform", 0.5))
        )
