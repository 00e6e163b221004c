"""Shapes from configurations: every key that a family counts by, and what is said where one is missing."""

from __future__ import annotations

from typing import Any

import pytest

from ktbench.spec.shape import moe_shape, text_config, with_experts
from tests.tiny import CONFIG

LAYERS = 6
SIX = CONFIG | {"num_hidden_layers": LAYERS}


def without(*keys: str, **others: Any) -> dict[str, Any]:
    return {key: value for key, value in CONFIG.items() if key not in keys} | others


@pytest.mark.parametrize("key", ["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"])
def test_experts_by_any_of_their_keys(key: str) -> None:
    config = without("num_experts", **{key: 12})
    assert moe_shape(config).experts == 12
    assert moe_shape(with_experts(config, 5)).experts == 5


@pytest.mark.parametrize(
    "key", ["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_k"]
)
def test_top_k_by_any_of_its_keys(key: str) -> None:
    assert moe_shape(without("num_experts_per_tok", **{key: 3})).top_k == 3


@pytest.mark.parametrize(
    ("rule", "moe_layers"),
    [
        ({}, 6),
        ({"first_k_dense_replace": 2}, 4),
        ({"num_dense_layers": 1}, 5),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse", "sparse"]}, 4),
        ({"mlp_layer_types": ["hash_moe", "moe", "moe", "moe", "moe", "moe"]}, 6),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 60}, 5),  # a slice whose list was not cut
        ({"mlp_only_layers": [0, 5]}, 4),
        ({"decoder_sparse_step": 2}, 3),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, 1),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, 3),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, 5),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 3}, 3),
        ({"moe_layer_interval": 2}, 3),
    ],
)
def test_layers_with_experts_by_every_rule(rule: dict[str, Any], moe_layers: int) -> None:
    shape = moe_shape(SIX | rule)
    assert (shape.layers, shape.moe_layers, shape.dense_layers) == (LAYERS, moe_layers, LAYERS - moe_layers)


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 0),
        ({"shared_expert_intermediate_size": 48}, 48),
        ({"shared_experts_intermediate_size": 40}, 40),
        ({"shared_intermediate_size": 56}, 56),
        ({"shared_intermediate_size": 0}, 0),
        ({"n_shared_experts": 2}, 64),
        ({"num_shared_experts": 1}, 32),
        ({"moe_num_shared_experts": 3}, 96),
        ({"model_type": "hunyuan_v1_moe"}, 96),
    ],
)
def test_width_of_shared_experts(keys: dict[str, Any], width: int) -> None:
    assert moe_shape(CONFIG | keys).shared_ffn == width


def test_dense_layers_may_have_a_width_of_their_own() -> None:
    assert moe_shape(CONFIG).dense_ffn == 96
    assert moe_shape(CONFIG | {"dense_intermediate_size": 80}).dense_ffn == 80
    assert moe_shape(without("moe_intermediate_size")).expert_ffn == 96


def test_a_multimodal_configuration_has_the_shape_of_its_text_model() -> None:
    nested = {"model_type": "gemma4", "hidden_size": 7, "text_config": CONFIG, "tie_word_embeddings": True}
    assert text_config(nested) == CONFIG
    shape = moe_shape(nested)
    assert shape == moe_shape(CONFIG | {"tie_word_embeddings": True})
    assert moe_shape(with_experts(nested, 4)).experts == 4
    assert nested["text_config"] == CONFIG


def test_a_number_may_be_listed_layer_by_layer() -> None:
    assert moe_shape(CONFIG | {"moe_intermediate_size": [32, 32]}).expert_ffn == 32
    with pytest.raises(ValueError, match=r"moe_intermediate_size=\[32, 16\]: differs from layer to layer"):
        moe_shape(CONFIG | {"moe_intermediate_size": [32, 16]})


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("num_experts", "has none of n_routed_experts, .*moe_num_primary_experts: not a Mixture-of-Experts model"),
        (
            "num_experts_per_tok",
            "has none of num_experts_per_tok, .*moe_num_active_primary_experts: not a Mixture-of-Experts model",
        ),
        ("hidden_size", "has none of hidden_size: cannot tell the model's shape"),
        ("num_hidden_layers", "has none of num_hidden_layers: cannot tell"),
        ("num_attention_heads", "has none of num_attention_heads: cannot tell"),
        ("vocab_size", "has none of vocab_size: cannot tell"),
    ],
)
def test_what_is_missing_is_named(missing: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"model configuration of qwen3_moe {says}"):
        moe_shape(without(missing))


def test_latent_attention_names_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="has none of qk_nope_head_dim"):
        moe_shape(CONFIG | {"kv_lora_rank": 16})
