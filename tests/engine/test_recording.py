"""What is recorded is what the routers of plain Transformers choose for the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ktbench.engine.load import is_experts, load
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.workload.recorded import Architecture, record_profile
from ktbench.engine.workload.routing import prompt_ids
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from tests.engine.tiny import EXPERTS, decode, plain_transformers, prefill, spec, tiny_model


def chosen_by_transformers(model: ModelSpec, ids: np.ndarray) -> np.ndarray:
    """[MoE layers, tokens, k]: what the routers of an untouched model choose in one pass over ids [batch, tokens]."""
    network = plain_transformers(model)
    seen: list[np.ndarray] = []
    for module in network.modules():
        if is_experts(module):
            module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].numpy()))
    with torch.inference_mode():
        network(torch.from_numpy(ids))
    return np.stack(seen)


def counted(ids: np.ndarray) -> list[list[int]]:
    return [np.bincount(layer.ravel(), minlength=EXPERTS).tolist() for layer in ids]


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v3"])
def test_prefill_records_every_token_of_every_prompt(name: str) -> None:
    model, work = tiny_model(name), prefill(batch=2, steps=1)
    profile = record_profile(lambda _: load(model), spec(model, work))
    chosen = chosen_by_transformers(model, prompt_ids(model.shape.vocab, 2, work.prompt, work.seed))
    assert profile.counts.tolist() == counted(chosen)
    assert profile.tokens == 2 * work.prompt


def test_decode_records_the_tokens_after_the_prompt() -> None:
    model, work = tiny_model(), decode(batch=2, steps=5)
    profile = record_profile(lambda _: load(model), spec(model, work))
    chosen = chosen_by_transformers(model, prompt_ids(model.shape.vocab, 2, work.prompt + 5, work.seed))
    after = chosen.reshape(len(chosen), 2, work.prompt + 5, -1)[:, :, work.prompt :]
    assert profile.counts.tolist() == counted(after)
    assert profile.tokens == 2 * 5


class Padded:
    """An engine whose first token is padding."""

    def configure(self, spec: RunSpec) -> None:
        self.asked = spec

    def recorded_routing(self) -> Sequence[PassRouting]:
        ids = torch.tensor([[-1, -1, -1, -1], [0, 1, 2, 3], [0, 4, 5, 6]])
        return [[Routing(ids=ids, gates=torch.ones(3, 4))] * 2] * 3


def test_padding_is_no_token_and_the_profile_says_what_was_run() -> None:
    model, work = tiny_model(), WorkloadSpec(phase="prefill", prompt=3, steps=3, seed=7)
    profile = record_profile(lambda _: Padded(), spec(model, work))
    assert profile.counts.tolist() == [[6, 3, 3, 3, 3, 3, 3, 0]] * 2
    assert profile.tokens == 2 * 3
    assert (profile.model, profile.architecture) == ("qwen3_30b_a3b", Architecture.of(model))
    assert "prefill of 3" in profile.source
    assert "workload.seed=7" in profile.source
