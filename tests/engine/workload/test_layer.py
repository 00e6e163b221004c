"""Selections of a layer workload."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ktbench.engine.workload.routing import layer_selections
from ktbench.spec.run_spec import Routing, WorkloadSpec
from ktbench.spec.shape import moe_shape
from tests.tiny import CONFIG

SHAPE = moe_shape(CONFIG)  # 8 experts, top-2


def layer(routing: Routing = "balanced", batch: int = 12, **options: object) -> WorkloadSpec:
    return WorkloadSpec(phase="layer", prompt=1, steps=3, batch=batch, routing=routing, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ["balanced", "zipf", "concentrated"])
def test_every_step_has_a_selection_of_its_own(routing: Routing) -> None:
    selections = layer_selections(layer(routing), SHAPE)
    assert len(selections) == 3
    for ids, gates in selections:
        assert ids.shape == gates.shape == (12, 2)
        assert (ids[:, 0] != ids[:, 1]).all()
        assert np.allclose(gates.sum(axis=1), 1, atol=1e-6)
    assert not np.array_equal(selections[0][1], selections[1][1])
    again = layer_selections(layer(routing), SHAPE)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(selections, again, strict=True))


@pytest.mark.parametrize("active", [2, 3, 4, 6, 8])
def test_active_experts_get_equally_many_tokens(active: int) -> None:
    for ids, _ in layer_selections(layer(active_experts=active), SHAPE):
        assert np.bincount(ids.ravel()).tolist() == [12 * 2 // active] * active


def test_recorded_selections_follow_the_file(tmp_path: Path) -> None:
    tokens = np.array([[[0, 7]], [[1, 2]]], dtype=np.uint8)
    np.savez(tmp_path / "t.npz", decode=tokens)
    for ids, gates in layer_selections(layer("recorded", batch=4, trace=str(tmp_path / "t.npz")), SHAPE):
        assert sorted(ids.tolist()) == [[0, 7], [0, 7], [1, 2], [1, 2]]
        assert gates.shape == (4, 2)


def test_routing_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set workload\.trace to FILE"):
        layer_selections(layer("recorded"), SHAPE)
    with pytest.raises(ValueError, match="no router"):
        layer_selections(WorkloadSpec(phase="decode", prompt=1, steps=1), SHAPE)
