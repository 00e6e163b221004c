"""Work of the experts, by hand."""

from __future__ import annotations

import torch

from ktbench.engine.routing import Routing
from ktbench.engine.work import ExpertsWork, layer_work, mean_work
from ktbench.spec.record import Work
from ktbench.spec.shape import moe_shape
from tests.engine.tiny import facts

QWEN = moe_shape(facts("qwen3_30b_a3b")["config"])  # 2048 x 768
WEIGHTS = 3 * 2048 * 768
ROWS = 768 + 768 + 2048


def test_work_of_a_layer() -> None:
    """Two tokens share expert 3: three experts are read, four run."""
    routing = Routing(ids=torch.tensor([[3, 5], [3, 9]]), gates=torch.full((2, 2), 0.5))
    work = layer_work(ExpertsWork(shape=QWEN, precision="int8"), routing)
    assert work == Work(weight_bytes=3 * (WEIGHTS + 8 * ROWS), flops=2 * 4 * WEIGHTS, tokens=2)
    skipping = layer_work(ExpertsWork(shape=QWEN, precision="bf16", skipping=1), routing)
    assert skipping.flops == 2 * 2 * WEIGHTS


def test_mean_of_steps() -> None:
    works = [Work(weight_bytes=bytes_, flops=10, tokens=2) for bytes_ in (100, 103, 110)]
    assert mean_work(works) == Work(weight_bytes=104, flops=10, tokens=2)
