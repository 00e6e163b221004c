"""Base is plain Transformers: same weights, same ids, same logits, bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from ktbench.engine.workload.routing import prompt_ids
from ktbench.spec.run_spec import WorkloadSpec
from tests.engine.tiny import NAMES, decode, logits_of_steps, plain_transformers, prefill, tiny_model

pytestmark = pytest.mark.peers


@torch.inference_mode()
def transformers_decode(network: PreTrainedModel, workload: WorkloadSpec) -> list[torch.Tensor]:
    ids = torch.from_numpy(prompt_ids(256, workload.batch, workload.prompt + workload.steps, workload.seed))
    cache = DynamicCache(config=network.config)
    network(ids[:, : workload.prompt], past_key_values=cache)
    at = range(workload.prompt, workload.prompt + workload.steps)
    return [network(ids[:, i : i + 1], past_key_values=cache).logits[:, -1].float() for i in at]


@torch.inference_mode()
def transformers_prefill(network: PreTrainedModel, workload: WorkloadSpec) -> list[torch.Tensor]:
    ids = torch.from_numpy(prompt_ids(256, workload.batch, workload.prompt * workload.steps, workload.seed))
    return [network(prompt, logits_to_keep=1).logits[:, -1].float() for prompt in ids.split(workload.prompt, dim=1)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_base_gives_the_logits_of_transformers(name: str, batch: int) -> None:
    model = tiny_model(name)
    network = plain_transformers(model)
    for workload, truth in ((decode(batch), transformers_decode), (prefill(batch), transformers_prefill)):
        for seen, expected in zip(logits_of_steps(model, workload), truth(network, workload), strict=True):
            assert torch.isfinite(seen).all()
            assert seen.std() > 0
            assert torch.equal(seen, expected)
