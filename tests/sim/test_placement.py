"""Coverage of a layer under each policy."""

from __future__ import annotations

from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ktbench.sim.calibration import read_calibration
from ktbench.sim.routing import ALL_ON_HOST, Coverage, coverage
from ktbench.spec.engine import PlacementSpec
from ktbench.spec.run_spec import RunSpec
from tests.sim.real import real_cell, real_model

COST = read_calibration("ktransformers")
QWEN3 = real_model("qwen3_30b_a3b")  # 48 layers, 128 experts of which a token selects 8
POLICIES = ("uniform", "random", "front_loading", "frequency", "dynamic")
FLAT = COST.changed({"skew_other": 0.0, "skew_drift": 0.0})


def placed(policy: str, ratio: float, c: bool = False, **work: Any) -> RunSpec:
    profile = "counts.npz" if policy == "frequency" else None
    placement = PlacementSpec(policy=policy, ratio=ratio, profile=profile)  # type: ignore[arg-type]
    return real_cell(QWEN3, placement=placement, cuda_graph=c, work={"prompt": 32, "steps": 1} | work)


def test_without_a_placement_all_are_on_the_host() -> None:
    assert coverage(real_cell(QWEN3), COST, 7) == ALL_ON_HOST == Coverage(device=0.0, any_on_host=1.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layer", [0, 47])
@pytest.mark.parametrize("c", [False, True])
def test_the_device_serves_nothing_at_the_least_ratio_and_everything_at_one(policy: str, layer: int, c: bool) -> None:
    none, all_ = coverage(placed(policy, 1e-9, c), COST, layer), coverage(placed(policy, 1.0, c), COST, layer)
    assert (none.device, none.any_on_host) == pytest.approx((0.0, 1.0), abs=1e-6)
    assert (all_.device, all_.any_on_host) == pytest.approx((1.0, 0.0), abs=1e-9)
    assert all_.any_on_host >= 0 and all_.device <= 1


@pytest.mark.parametrize("policy", ["uniform", "random"])
def test_experts_anywhere_serve_their_share_of_the_selections(policy: str) -> None:
    half = coverage(placed(policy, 0.5), COST, 3)
    assert half.device == 0.5
    assert half.any_on_host == pytest.approx(1 - comb(64, 8) / comb(128, 8))


@pytest.mark.parametrize("policy", ["uniform", "dynamic"])
def test_a_graph_calls_the_host_wherever_it_has_experts(policy: str) -> None:
    assert coverage(placed(policy, 0.99, c=True), COST, 3).any_on_host == 1.0
    assert coverage(placed("front_loading", 0.5, c=True), COST, 3).any_on_host == 0.0


def test_every_token_of_a_batch_may_need_the_host() -> None:
    alone = coverage(placed("uniform", 0.9), COST, 0)
    batch = coverage(placed("uniform", 0.9, batch=3), COST, 0)
    assert 1 - batch.any_on_host == pytest.approx((1 - alone.any_on_host) ** 3)


def recorded(path: Path, ids: NDArray[np.int64], policy: str) -> float:
    """The share of the selections `ids` [T, 8] that a sixteenth of 128 experts serves, eight of a layer."""
    np.savez(path, decode=ids[:, None, :])
    return coverage(placed(policy, 1 / 16, routing="recorded", trace=str(path)), COST, 0).device


def test_of_recorded_routing_the_most_selected_experts_serve_their_share(tmp_path: Path) -> None:
    """Three of four tokens select the same eight experts, which is what the model's own skew does not know."""
    ids = np.tile(np.array([[0], [0], [0], [120]]) + np.arange(8), (256, 1))
    assert recorded(tmp_path / "trace.npz", ids, "frequency") == 0.75


def test_where_the_subject_of_a_recording_changes_the_dynamic_policy_serves_more(tmp_path: Path) -> None:
    """Eight experts for 1,024 tokens, then eight others: what was selected most serves half in the long run."""
    ids = np.repeat(np.array([[40], [120]]), 1024, axis=0) + np.arange(8)
    fixed, moving = (recorded(tmp_path / "trace.npz", ids, policy) for policy in ("frequency", "dynamic"))
    assert fixed == pytest.approx(0.5, abs=1e-9)
    assert 0.7 < moving < 1.0


def test_front_loading_takes_whole_layers_from_the_first_on() -> None:
    spec = placed("front_loading", 0.26)  # of 48 layers 12.48
    found = [coverage(spec, COST, layer) for layer in range(48)]
    assert all(one == Coverage(device=1.0, any_on_host=0.0) for one in found[:12])
    assert all(one == ALL_ON_HOST for one in found[13:])
    assert found[12].device == pytest.approx(0.48)
    assert 0.99 < found[12].any_on_host < 1.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ratio", [0.125, 0.5, 0.75])
def test_all_layers_together_hold_the_ratio(policy: str, ratio: float) -> None:
    """Where all experts are equally popular, each policy covers its share of the selections and no more."""
    shares = [coverage(placed(policy, ratio), FLAT, layer).device for layer in range(48)]
    assert sum(shares) / 48 == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize("policy", ["frequency", "dynamic"])
def test_popular_experts_serve_more_than_their_share_the_more_so_the_more_skewed_they_are(policy: str) -> None:
    spec = placed(policy, 0.25)
    flat, some, much = (coverage(spec, COST.changed({"skew_other": skew}), 0).device for skew in (0.0, 0.6, 1.8))
    assert 0.25 <= flat < some < much < 1


@pytest.mark.parametrize(
    ("ratio", "skew", "frequency", "dynamic"),
    [(0.10, 0.640, 0.238, 0.325), (0.25, 0.712, 0.497, 0.619), (0.50, 0.805, 0.793, 0.881)],
)
def test_dynamic_gains_over_frequency_what_recorded_routing_gains(
    ratio: float, skew: float, frequency: float, dynamic: float
) -> None:
    """Of gpt-oss-20b over many subjects (docs/placement.md): at the skew of the long run, one drift for all ratios."""
    cost = COST.changed({"skew_other": skew})
    found = [coverage(placed(policy, ratio), cost, 0).device for policy in ("frequency", "dynamic")]
    assert found == pytest.approx([frequency, dynamic], abs=0.02)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(POLICIES), st.lists(st.floats(0.001, 1), min_size=2, max_size=6), st.integers(0, 47),
    st.booleans(), st.integers(1, 4), st.integers(0, 20),
)  # fmt: skip
def test_more_at_the_device_covers_no_less(
    policy: str, ratios: list[float], layer: int, c: bool, batch: int, seed: int
) -> None:
    found = [coverage(placed(policy, ratio, c, batch=batch, seed=seed), COST, layer) for ratio in sorted(ratios)]
    assert all(0 <= one.device <= 1 and 0 <= one.any_on_host <= 1 for one in found)
    for less, more in pairwise(found):
        assert less.device <= more.device + 1e-12
        assert less.any_on_host >= more.any_on_host - 1e-12
