"""Latent attention on cached latents gives what Transformers gives on the expanded context."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.decode.attention import StepAttention
from ktbench.engine.decode.inputs import CACHE, AttentionWindows, StepInputs, fill, fixed_cache
from ktbench.engine.decode.latent import LatentAttention, StepLatentAttention
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.dense import DenseOperators
from ktbench.engine.inject.registry import OPERATORS
from tests.engine.engines import needs_vector
from tests.engine.families.zoo import bare, configuration

pytestmark = [needs_vector(), pytest.mark.usefixtures("inference")]

FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
PROMPT, ROOM, BATCH = 9, 16, 3
_TOLERANCE = 2e-2


@pytest.fixture(params=FAMILIES)
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(3)
    build: Any = AutoModelForCausalLM.from_config
    return build(configuration(request.param), dtype=torch.bfloat16, experts_implementation="eager").eval()


@pytest.fixture
def attention(network: Any) -> nn.Module:
    found: nn.Module = network.model.layers[0].self_attn
    return found


class Counted(nn.Linear):
    """A linear layer that counts the rows it multiplies."""

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).rows += x.shape[:-1].numel()
        return super().forward(x)


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found.float() - truth.float()).norm() / truth.float().norm())


def prompt_of(network: Any) -> tuple[Tensor, DynamicCache]:
    """The hidden states of one more token, and a cache of what came before."""
    torch.manual_seed(5)
    hidden = torch.randn(BATCH, PROMPT + 1, network.config.hidden_size).bfloat16()
    cache = DynamicCache(config=network.config)
    call(network, network.model.layers[0].self_attn, hidden[:, :PROMPT], cache, 0)
    return hidden[:, PROMPT:], cache


def call(network: Any, module: nn.Module, hidden: Tensor, cache: Any, first: int, mask: Tensor | None = None) -> Tensor:
    positions = torch.arange(first, first + hidden.shape[1])[None].expand(len(hidden), -1)
    rotation = network.model.rotary_emb(hidden, positions)
    output: tuple[Tensor, Any] = module(
        hidden_states=hidden, position_embeddings=rotation, attention_mask=mask, **{CACHE: cache}
    )
    return output[0]


def bool_mask(padding: Tensor) -> Tensor:
    return (torch.arange(PROMPT + 1) >= padding[:, None])[:, None, None]


@pytest.mark.parametrize("padded", [False, True])
def test_latents_are_attended_to_as_they_are(network: Any, attention: nn.Module, padded: bool) -> None:
    mask = bool_mask(torch.tensor([0, 4, PROMPT])) if padded else None
    hidden, cache = prompt_of(network)
    truth = call(network, attention, hidden, copy.deepcopy(cache), PROMPT, mask)
    wrapped, config, before = LatentAttention(attention), attention.config, Counted.rows
    attention.kv_b_proj.__class__ = Counted  # type: ignore[union-attr]
    found = call(network, wrapped, hidden, cache, PROMPT, mask)
    assert relative(found, truth) < _TOLERANCE
    assert Counted.rows == before, "the context was expanded"
    assert attention.config is config
    assert "expand_kv" not in vars(attention)


def test_a_mask_of_numbers_is_added(network: Any, attention: nn.Module) -> None:
    hidden, cache = prompt_of(network)
    seen = bool_mask(torch.tensor([0, 4, PROMPT]))
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.bfloat16).min).bfloat16()
    wrapped = LatentAttention(attention)
    by_numbers = call(network, wrapped, hidden, copy.deepcopy(cache), PROMPT, added)
    assert torch.equal(by_numbers, call(network, wrapped, hidden, cache, PROMPT, seen))


def test_prompts_are_left_to_the_original(network: Any, attention: nn.Module) -> None:
    hidden = torch.randn(BATCH, PROMPT, network.config.hidden_size).bfloat16()
    truth = call(network, attention, hidden, None, 0)
    assert torch.equal(call(network, LatentAttention(attention), hidden, None, 0), truth)


@pytest.fixture
def steps(network: Any) -> Iterator[tuple[DenseOperators, StepAttention]]:
    device = DenseOperators(1, "bf16", CallRecorder(), keeps_original=False)
    yield device, StepAttention(network, device)


@pytest.mark.parametrize("padding", [[0, 0, 0], [0, 4, 8]])
def test_native_calls_give_the_same(
    network: Any, attention: nn.Module, steps: tuple[DenseOperators, StepAttention], padding: list[int]
) -> None:
    hidden, cache = prompt_of(network)
    first = torch.tensor(padding)
    truth = call(network, attention, hidden, copy.deepcopy(cache), PROMPT, bool_mask(first))
    inputs = StepInputs(first, ROOM, AttentionWindows.of(SimpleNamespace()), None)
    fixed = fixed_cache(list(cache.layers[:1]), ROOM, inputs.slot)
    fill(fixed, list(cache.layers[:1]))
    inputs.set(torch.zeros(BATCH, 1, dtype=torch.int64), PROMPT)
    inputs.follow()
    wrapped = StepLatentAttention(attention, *steps)
    with steps[1].of_step(inputs):
        found = call(network, wrapped, hidden, fixed, PROMPT, None)
    assert relative(found, truth) < _TOLERANCE
    layer: Any = fixed.layers[0]
    cached: Any = cache.layers[0]
    assert torch.equal(layer.keys[:, :, :PROMPT], cached.keys)
    assert torch.equal(layer.beside[..., cached.keys.shape[3] :], layer.values)


def test_the_tolerance_rejects_what_is_wrong(network: Any, attention: nn.Module) -> None:
    hidden, cache = prompt_of(network)
    truth = call(network, attention, hidden, copy.deepcopy(cache), PROMPT)
    wrapped = LatentAttention(attention)
    weight: Tensor = attention.kv_b_proj.weight.data  # type: ignore[union-attr, assignment]
    for mutant in (weight.flip(0), weight.flip(1), weight * 1.2):
        kept = weight.clone()
        weight.copy_(mutant)
        assert relative(call(network, wrapped, hidden, copy.deepcopy(cache), PROMPT), truth) > _TOLERANCE
        weight.copy_(kept)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_fits(name: str) -> None:
    assert OPERATORS["latent_attention"].fits(bare(name).get_submodule("model.layers.0.self_attn")) == ""


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v32", "glm_moe_dsa"])
def test_other_attention_is_refused(name: str) -> None:
    assert OPERATORS["latent_attention"].fits(bare(name).get_submodule("model.layers.0.self_attn"))


def test_projections_that_are_packed_are_refused(attention: nn.Module) -> None:
    attention.set_submodule("kv_b_proj", nn.Identity())
    with pytest.raises(ValueError, match="kv_b_proj"):
        LatentAttention(attention)
