"""Base is plain Transformers: same weights, same ids, same logits, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.engine.families.plain import build
from tests.engine.prompts import together
from tests.engine.tiny import NAMES, decode, logits_of_steps, prefill, tiny_model

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_base_gives_the_logits_of_transformers(name: str, batch: int) -> None:
    model = tiny_model(name)
    network = build(model)
    for workload in (decode(batch), prefill(batch)):
        for seen, expected in zip(logits_of_steps(model, workload), together(network, workload), strict=True):
            assert torch.isfinite(seen).all()
            assert seen.std() > 0
            assert torch.equal(seen, expected)
