"""The architectures in conf/model, against Transformers' own modules and against published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from ktbench.engine.forms import is_experts
from ktbench.engine.synthetic import skeleton
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.shape import MoEShape, moe_shape
from tests.engine.tiny import NAMES, facts, shrunk

FACTS = Path(__file__).parents[3] / "shared" / "data" / "model_configs" / "model_facts.json"

# Billions of parameters as published with each model, to the digits published, and its row in the table of facts.
PUBLISHED: dict[str, tuple[float, str | None]] = {
    "deepseek_v3": (671, "DeepSeek-V3 / R1"),
    "deepseek_v2": (236, "DeepSeek-V2"),
    "deepseek_v2_lite": (15.7, "DeepSeek-V2-Lite"),
    "qwen2_57b_a14b": (57.4, "Qwen2-57B-A14B"),
    "qwen3_30b_a3b": (30.5, "Qwen3-30B-A3B"),
    "qwen3_235b_a22b": (235, "Qwen3-235B-A22B"),
    "qwen3_next_80b_a3b": (79.7, None),  # "80B"; the digits are those of its 48 layers
    "mixtral_8x7b": (46.7, "Mixtral-8x7B"),
    "kimi_k2": (1026, "Kimi-K2"),  # "1T"; the digits are those of its 61 layers
    "glm_4_5_air": (107, "GLM-4.5-Air (106B-A12B)"),
    "minimax_m2": (229, "MiniMax-M2.5 (M2 family)"),
    "gpt_oss_20b": (20.9, "gpt-oss-20b"),
    "gpt_oss_120b": (117, "gpt-oss-120b"),
}


def whole(name: str) -> ModelSpec:
    content = facts(name)
    shape = moe_shape(content["config"])
    return ModelSpec(name=name, config=content["config"], full_layers=shape.layers, full_vocab=shape.vocab)


def counted(network: nn.Module) -> tuple[int, int]:
    """Parameters in routed expert matrices, and all others."""
    experts = [module for module in network.modules() if is_experts(module)]
    routed = sum(p.numel() for module in experts for p in module.parameters() if p.dim() == 3)
    return routed, sum(p.numel() for p in network.parameters()) - routed


def assert_agrees(shape: MoEShape, network: nn.Module) -> None:
    routed, others = counted(network)
    assert shape.routed_params == routed
    assert abs(shape.other_params / others - 1) < 0.01


def test_every_file_is_a_real_model_or_the_tiny_one() -> None:
    assert set(NAMES) == {*PUBLISHED, "tiny"}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_shape_agrees_with_the_modules_and_with_published_sizes(name: str) -> None:
    model = whole(name)
    network = skeleton(model)
    assert_agrees(model.shape, network)
    assert all(parameter.is_meta for parameter in network.parameters())
    wide = {name for name, parameter in network.named_parameters() if parameter.dtype != torch.bfloat16}
    assert all(name.endswith(".mlp.gate.weight") for name in wide)  # routers, which some families keep in float32
    assert sum(counted(network)) / 1e9 == pytest.approx(PUBLISHED[name][0], rel=0.005)


@pytest.mark.skipif(not FACTS.is_file(), reason="no shared data folder next to this checkout")
@pytest.mark.parametrize("name", sorted(name for name, (_, fact) in PUBLISHED.items() if fact))
def test_shape_agrees_with_the_table_of_facts(name: str) -> None:
    fact = next(row for row in json.loads(FACTS.read_text()) if row["model"] == PUBLISHED[name][1])
    shape = moe_shape(facts(name)["config"])
    assert shape.routed_params == fact["routed_params_total"]
    assert (shape.layers, shape.moe_layers, shape.hidden) == (fact["layers"], fact["moe_layers"], fact["hidden"])
    assert (shape.expert_ffn, shape.experts, shape.top_k) == (fact["expert_ffn"], fact["experts"], fact["top_k"])
    assert shape.vocab == fact["vocab"]


@pytest.mark.parametrize(
    "layout",
    [{"mlp_only_layers": [0, 2]}, {"decoder_sparse_step": 2}, {"decoder_sparse_step": 3, "mlp_only_layers": [2]}],
)
@pytest.mark.parametrize("name", ["qwen2_57b_a14b", "qwen3_30b_a3b"])
def test_dense_layers_named_one_by_one_or_by_a_step_are_counted(name: str, layout: dict[str, object]) -> None:
    config = shrunk(name) | layout | {"num_hidden_layers": 6}
    model = ModelSpec(name=name, config=config, full_layers=6, full_vocab=256)
    assert model.shape.routed_params == counted(skeleton(model))[0]


def test_slice_keeps_the_dense_layers_at_the_front() -> None:
    config = facts("deepseek_v3")["config"]
    model = ModelSpec(name="deepseek_v3", config=config | {"num_hidden_layers": 4}, full_layers=61, full_vocab=129280)
    assert (model.shape.dense_layers, model.shape.moe_layers) == (3, 1)
    assert sum(map(is_experts, skeleton(model).modules())) == 1
    with pytest.raises(ValueError, match="first MoE layer at 4"):
        ModelSpec(name="deepseek_v3", config=config | {"num_hidden_layers": 3}, full_layers=61, full_vocab=129280)
