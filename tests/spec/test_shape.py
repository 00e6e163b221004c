"""Shapes from configurations: every key that a family counts by, and what is said where one is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec import shape as shape_module
from ktbench.spec.config_facts import Count, require_counted
from ktbench.spec.shape import MoEShape, known_config, moe_shape, text_config, with_experts
from tests.tiny import CONFIG

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
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
        ({"interleave_moe_layer_step": 2}, 3),
        ({"interleave_moe_layer_step": 2, "moe_layers": [5]}, 1),
        ({"moe_layer_freq": 1}, 6),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1]}, 5),
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


def test_a_key_that_decides_no_size_of_the_language_model_is_read_over() -> None:
    others = {"vision_hidden_size": 1152, "mtp_layer_ids": [61], "router_aux_loss_coef": 0.01, "moe_latent_size": None}
    assert moe_shape(CONFIG | others | {"use_expert_bias": True}) == moe_shape(CONFIG)


def test_every_key_that_sizes_are_counted_by_is_known() -> None:
    keys = {key for one in vars(shape_module).values() if isinstance(one, Count) for key in one.keys}
    for key in keys:
        require_counted({key: 7})


def test_a_head_dim_beside_latent_attention_decides_nothing() -> None:
    """Releases have there that of a query with its rotated part, or of the rotated part alone."""
    assert moe_shape(LATENT | {"head_dim": 8}) == moe_shape(LATENT)


# As the makers count them, in billions: all weights, and those of a token without embedding and head.
RELEASED = {
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (400, 15),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (108, 15),
    "deepseek-ai--DeepSeek-V4-Flash": (284, 13),
    "deepseek-ai--DeepSeek-V4-Pro": (1600, 49),
    "deepseek-ai--DeepSeek-V3": (671, 36),
    "Qwen--Qwen3-235B-A22B": (235, 21),
}


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="no shared data folder next to this checkout")
@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_the_sizes_that_their_makers_give(name: str) -> None:
    config = json.loads((CONFIGS / f"{name}_config.json").read_text())
    shape = moe_shape(known_config(config))
    total, active = shape.routed_params + shape.other_params, shape.other_params - 2 * shape.vocab * shape.hidden
    active += shape.moe_layers * shape.top_k * shape.expert_params
    assert (total / 1e9, active / 1e9) == pytest.approx(RELEASED[name], rel=0.04)


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


LATENT = CONFIG | {
    "kv_lora_rank": 16, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "head_dim": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: allowed are 1 to"),
        ({"num_hidden_layers": -1}, "num_hidden_layers=-1: allowed are 1 to"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers=100000000: allowed are 1 to"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers=nan: must be finite"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers=2.0: must be a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True: must be a whole number"),
        ({"num_experts": 0}, "num_experts=0: allowed are 1 to"),
        ({"num_experts": []}, r"num_experts=\[\]: must be a whole number"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9: a token gets at most all 8 experts"),
        ({"hidden_size": -64}, "hidden_size=-64: allowed are 1 to"),
        ({"hidden_size": "64"}, "hidden_size='64': must be a whole number"),
        ({"hidden_size": 10**30}, "hidden_size=1000.*: must be a number of 64 bits"),
        ({"vocab_size": 2**40}, "vocab_size=1099511627776: allowed are 1 to"),
        ({"num_attention_heads": 0}, "num_attention_heads=0: allowed are 1 to"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: must divide 4 heads"),
        ({"head_dim": 0}, "head_dim=0: allowed are 1 to"),
        ({"head_dim": None, "num_attention_heads": 128}, "num_attention_heads=128: without a head_dim"),
        ({"n_group": 3, "topk_group": 1}, "n_group=3: must divide 8 experts"),
        ({"n_group": 4, "topk_group": 5}, "topk_group=5: a token gets 2 of 8 experts in 4 groups"),
        ({"n_group": 8, "topk_group": 1}, "topk_group=1: a token gets 2 of 8 experts in 8 groups"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0: allowed are 1 to"),
        ({"expert_layer_period": 0}, "expert_layer_period=0: allowed are 1 to"),
        ({"mlp_only_layers": {"a": 1}}, "mlp_only_layers={'a': 1}: must be a list of int"),
        ({"mlp_layer_types": 5}, "mlp_layer_types=5: must be a list of str"),
        ({"n_shared_experts": -1}, "n_shared_experts=-1: allowed are 0 to"),
        ({"shared_expert_intermediate_size": 1.5}, "shared_expert_intermediate_size=1.5: must be a whole number"),
        (LATENT | {"kv_lora_rank": -1}, "kv_lora_rank=-1: allowed are 1 to"),
        (LATENT | {"q_lora_rank": 0}, "q_lora_rank=0: allowed are 1 to"),
        (LATENT | {"head_dim": 10**8}, "head_dim=100000000: allowed are 1 to"),
        ({"routed_expert_hidden_size": 3584}, "routed_expert_hidden_size=3584: decides a size"),
        ({"moe_latent_size": 1024}, "moe_latent_size=1024: decides a size"),
        ({"hybrid_override_pattern": "MEM*E"}, "hybrid_override_pattern='MEM\\*E': decides a size"),
        ({"my_layer_ids": [1, 5]}, r"my_layer_ids=\[1, 5\]: decides a size"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2: must be 1, or a list"),
        ({"moe_layer_freq": [0, 2]}, r"moe_layer_freq=\[0, 2\]: must be 1, or a list"),
        (LATENT | {"v_head_dim": 1e9}, "v_head_dim=1000000000.0: must be a whole number"),
        ({"rope_theta": float("inf")}, "rope_theta=inf: must be finite"),
        ({"rope_parameters": {"factor": [1, float("nan")]}}, "rope_parameters.factor=nan: must be finite"),
        ({"hidden_act": "\ud800"}, "hidden_act=.*: is not UTF-8 text"),
        ({"architectures": {3: "x"}}, "architectures=3: keys must be texts"),
        ({"text_config": "abc"}, "text_config='abc': must be an object"),
        ({"model_type": None}, "has no model_type"),
        ({"model_type": ["qwen3_moe"]}, "has no model_type"),
        ({"x": {1, 2}}, "x={1, 2}: must be a number or a text"),
    ],
)
def test_what_no_model_can_have_is_named(facts: dict[str, Any], says: str) -> None:
    for read in (moe_shape, known_config):
        with pytest.raises(ValueError, match=f"model configuration: {says}") as refused:
            read(CONFIG | facts)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels):
        inner = {"inner": inner}
    return CONFIG | inner


def test_what_is_nested_too_deep_is_refused() -> None:
    assert moe_shape(nested(10)) == moe_shape(CONFIG)
    for levels in (20, 5_000):
        with pytest.raises(ValueError, match="inner is nested more than 16 levels deep"):
            moe_shape(nested(levels))


@pytest.mark.parametrize("config", [None, 3, "text", [], {}])
def test_what_is_no_configuration_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match="model configuration: "):
        moe_shape(config)


def test_fewer_experts_leave_out_groups_that_they_do_not_fill() -> None:
    grouped = CONFIG | {"n_group": 4, "topk_group": 2}
    assert with_experts(grouped, 4) == grouped | {"num_experts": 4}
    assert with_experts(grouped, 6) == grouped | {"num_experts": 6, "n_group": 1, "topk_group": 1}


VALUES = (
    st.none() | st.booleans() | st.integers(-2, 70) | st.integers() | st.floats() | st.text(max_size=3)
    | st.lists(st.integers(-1, 9), max_size=3) | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
)  # fmt: skip
FACTS = st.dictionaries(st.sampled_from([*LATENT, "n_group", "topk_group", "mlp_only_layers", "text_config"]), VALUES)


@given(st.sampled_from([CONFIG, LATENT]), FACTS)
def test_any_configuration_has_a_shape_or_is_refused_in_one_line(config: dict[str, Any], facts: dict[str, Any]) -> None:
    try:
        shape = moe_shape(config | facts)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    require_possible(shape)


def require_possible(shape: MoEShape) -> None:
    assert 1 <= shape.top_k <= shape.experts
    assert 0 <= shape.dense_layers <= shape.layers
    assert min(shape.hidden, shape.expert_ffn, shape.layers, shape.vocab, shape.attention_params) > 0
    assert shape.routed_params >= 0
    assert shape.other_params > 0
