"""Tables of the families: configurations to metadata and back, names, and tensors in another form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ktbench.engine.gguf.changes import (
    DecayRate,
    DeltaHeads,
    DepthwiseKernel,
    LatentHeads,
    NormPlusOne,
    RotaryRows,
    VectorRow,
)
from ktbench.engine.gguf.facts import short
from ktbench.engine.gguf.families import ARCHITECTURE, FAMILIES, expert_tensors, family_in, family_of
from tests.engine.tiny import NAMES, facts

# Known models that llama.cpp would compute otherwise, or not at all, and the reason given.
LEFT_OUT = {
    "deepseek_v2": "topk_method=group_limited_greedy",
    "kimi_k2": "beta_fast=1.0, llama.cpp supports 32.0",
}
KNOWN = [name for name in NAMES if name not in LEFT_OUT]
TENSORS = ("output.weight", "blk.0.attn_q.bias")


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = facts(name)["config"]
    return config | changes


def as_stored(metadata: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The metadata as a reader gives them: floating-point numbers have been float32 in the file."""
    stored = {key: float(np.float32(value)) if type(value) is float else value for key, value in metadata.items()}
    return stored | {ARCHITECTURE: architecture}


@pytest.mark.parametrize("name", KNOWN)
def test_a_configuration_comes_back_from_its_metadata(name: str) -> None:
    config = config_of(name)
    family = family_of(config)
    stored = as_stored(family.metadata(config), family.architecture)
    assert family_in(stored) is family
    read = family.config(stored, TENSORS)
    # How weights are initialised is all that a file does not tell.
    assert {key: read.get(key) for key in config} == config | {"initializer_range": None}


# Fields that ask for another computation than the network's, or that nothing here knows, by a family that does not
# read them.
UNREAD: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_30b_a3b", {"expert_weights_scale": 2.5}, "expert_weights_scale=2.5"),
    ("qwen3_30b_a3b", {"expert_weights_norm": False}, "expert_weights_norm=False"),
    ("qwen3_30b_a3b", {"expert_gating_func": 2}, "expert_gating_func=2"),
    ("qwen3_30b_a3b", {"attention.sliding_window": 4096}, "attention.sliding_window=4096"),
    ("qwen3_30b_a3b", {"logit_scale": 0.5}, "logit_scale=0.5"),
    ("qwen3_30b_a3b", {"expert_group_count": 4}, "expert_group_count=4"),
    ("qwen3_30b_a3b", {"rope.scaling.type": "longrope"}, "rope.scaling.type=longrope"),
    ("qwen3_30b_a3b", {"rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor=1.2"),
    ("qwen3_30b_a3b", {"rope.dimension_count": 64}, "rope.dimension_count=64"),
    ("qwen3_30b_a3b", {"rope.dimension_sections": [16, 24, 24, 0]}, "rope.dimension_sections=[16"),
    ("qwen3_30b_a3b", {"attention.value_length": 64}, "attention.value_length=64"),
    ("qwen3_30b_a3b", {"attention.head_count_kv": [4, 4, 2]}, "attention.head_count_kv='[4, 4, 2]'"),
    ("qwen3_30b_a3b", {"made_up": 0}, "made_up=0"),
    ("mixtral_8x7b", {"expert_weights_norm": False}, "expert_weights_norm=False"),
    ("gpt_oss_20b", {"expert_gating_func": 2}, "expert_gating_func=2"),
    ("deepseek_v2_lite", {"expert_weights_norm": True}, "expert_weights_norm=True"),
    ("deepseek_v2_lite", {"attention.temperature_scale": 0.1}, "attention.temperature_scale=0.1"),
    ("deepseek_v3", {"rope.scaling.type": "linear"}, "rope.scaling.type=linear"),
    ("qwen3_next_80b_a3b", {"attention.clamp_kqv": 8.0}, "attention.clamp_kqv=8.0"),
]


def with_fields(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a model with more fields."""
    family = family_of(config_of(name))
    more = {f"{family.architecture}.{key}": value for key, value in fields.items()}
    return as_stored(family.metadata(config_of(name)) | more, family.architecture)


@pytest.mark.parametrize(("name", "fields", "why"), UNREAD)
def test_a_field_that_asks_for_another_computation_is_refused_by_name(
    name: str, fields: dict[str, Any], why: str
) -> None:
    stored = with_fields(name, fields)
    family = family_of(config_of(name))
    with pytest.raises(ValueError) as refused:
        family.config(stored, TENSORS)
    assert f"{family.architecture}.{why}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("qwen3_30b_a3b", {"expert_weights_norm": True, "expert_gating_func": 1, "expert_weights_scale": 1.0}),
        ("qwen3_30b_a3b", {"expert_group_count": 1, "expert_group_used_count": 1, "rope.scaling.finetuned": False}),
        ("qwen3_30b_a3b", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0, "attention.causal": True}),
        ("mixtral_8x7b", {"rope.dimension_count": 128, "attention.layer_norm_epsilon": 1e-5}),
        ("deepseek_v2_lite", {"expert_weights_norm": False, "expert_group_count": 1}),
        ("deepseek_v3", {"expert_gating_func": 2}),
    ],
)
def test_a_field_that_changes_nothing_is_read_over(name: str, fields: dict[str, Any]) -> None:
    family = family_of(config_of(name))
    assert family.config(with_fields(name, fields), TENSORS) == family.config(with_fields(name, {}), TENSORS)


def test_newer_files_say_of_each_layer_whether_its_attention_is_linear() -> None:
    """Those of llama.cpp's converter have the interval, too, and layers that predict further tokens in the list."""
    layers = config_of("qwen3_next_80b_a3b")["num_hidden_layers"]
    linear = [layer % 2 == 0 for layer in range(layers)]
    fields = {"attention.recurrent_layers": [*linear, False], "full_attention_interval": 4}
    read = family_of(config_of("qwen3_next_80b_a3b")).config(with_fields("qwen3_next_80b_a3b", fields), TENSORS)
    assert read["layer_types"] == ["linear_attention" if one else "full_attention" for one in linear]


def test_a_width_that_heads_share_is_rotated_in_part() -> None:
    """As llama.cpp's converter writes a GLM-4.5 that has no head_dim of its own."""
    stored = with_fields("glm_4_5_air", {})
    heads = {f"glm4moe.attention.{one}_length" for one in ("key", "value")}
    width = stored["glm4moe.embedding_length"] // stored["glm4moe.attention.head_count"]
    shared = {key: one for key, one in stored.items() if key not in heads} | {
        "glm4moe.rope.dimension_count": width // 2
    }
    read = family_of(config_of("glm_4_5_air")).config(shared, TENSORS)
    assert read["rope_parameters"]["partial_rotary_factor"] * width == width // 2


def test_a_factor_alone_scales_linearly_as_in_llama_cpp() -> None:
    read = family_of(config_of("qwen3_30b_a3b")).config(with_fields("qwen3_30b_a3b", {"rope.scaling.factor": 4.0}), ())
    assert read["rope_parameters"] == {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_llama_cpp_would_compute_otherwise_is_refused(name: str) -> None:
    with pytest.raises(ValueError) as refused:
        family_of(config_of(name)).metadata(config_of(name))
    assert LEFT_OUT[name] in str(refused.value)
    assert "\n" not in str(refused.value)


_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("qwen3_30b_a3b", {"norm_topk_prob": False}, "norm_topk_prob=False, llama.cpp supports True"),
        ("qwen3_30b_a3b", {"mlp_only_layers": [0]}, "mlp_only_layers=[0]"),
        ("qwen3_30b_a3b", {"rope_parameters": {"rope_type": "llama3"}}, "rope_type=llama3"),
        ("qwen3_30b_a3b", {"rope_parameters": _YARN | {"attention_factor": 1.1}}, "attention_factor=1.1"),
        ("qwen3_30b_a3b", {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}, "mscale=1.0"),
        ("qwen2_57b_a14b", {"head_dim": 64}, "head_dim=64, llama.cpp supports hidden_size / num_attention_heads = 128"),
        ("mixtral_8x7b", {"sliding_window": 4096}, "sliding_window=4096"),
        ("deepseek_v2_lite", {"rope_parameters": _YARN}, "mscale=None"),
        ("deepseek_v2_lite", {"rope_parameters": _YARN | {"rope_type": "linear"}}, "rope_type=linear"),
        ("deepseek_v3", {"num_hidden_layers": 27}, "takes it for DeepSeek-V2-Lite"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave=False"),
        ("gpt_oss_20b", {"layer_types": ["full_attention"] * 24}, "layer_types in another order"),
        ("gpt_oss_20b", {"swiglu_limit": 10.0}, "swiglu_limit=10.0, llama.cpp supports 7.0"),
        ("glm_4_5_air", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("minimax_m2", {"tie_word_embeddings": True}, "tie_word_embeddings=True, llama.cpp supports False"),
        ("qwen3_next_80b_a3b", {"linear_value_head_dim": 64}, "linear_value_head_dim=64"),
        ("qwen3_next_80b_a3b", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types in another order"),
    ],
)
def test_a_fact_that_no_field_carries_is_refused(name: str, changes: dict[str, Any], why: str) -> None:
    config = config_of(name, **changes)
    with pytest.raises(ValueError) as refused:
        family_of(config).metadata(config)
    assert why in str(refused.value)


def test_fields_of_published_files_are_understood() -> None:
    """Layers that predict further tokens are counted in, and the vocabulary is a list."""
    config = config_of("glm_4_5_air")
    family = family_of(config)
    stored = as_stored(family.metadata(config), family.architecture)
    stored |= {"glm4moe.block_count": 47, "glm4moe.nextn_predict_layers": 1, "tokenizer.ggml.tokens": ["a", "b"]}
    del stored["glm4moe.vocab_size"]
    read = family.config(stored, ("blk.0.attn_q_norm.weight",))
    assert (read["num_hidden_layers"], read["vocab_size"]) == (46, 2)
    assert (read["tie_word_embeddings"], read["attention_bias"], read["use_qk_norm"]) == (True, False, True)


def test_files_from_before_split_latent_heads_are_understood() -> None:
    config = config_of("deepseek_v2_lite")
    family = family_of(config)
    stored = as_stored(family.metadata(config), family.architecture)
    stored |= {"deepseek2.attention.key_length": 192, "deepseek2.attention.value_length": 128}
    for name in ("attention.key_length_mla", "attention.value_length_mla", "attention.q_lora_rank"):
        del stored[f"deepseek2.{name}"]
    read = family.config(stored, TENSORS)
    assert (read["qk_nope_head_dim"], read["v_head_dim"], read["q_lora_rank"]) == (128, 128, None)


def test_a_missing_field_and_an_unknown_architecture_are_named() -> None:
    config = config_of("qwen3_30b_a3b")
    family = family_of(config)
    stored = family.metadata(config)
    del stored["qwen3moe.expert_count"]
    with pytest.raises(ValueError, match=r"GGUF metadata has no qwen3moe\.expert_count"):
        family.config(stored, TENSORS)
    with pytest.raises(ValueError, match="architecture bert: not read here; allowed are qwen3moe, qwen2moe, llama"):
        family_in({ARCHITECTURE: "bert"})


def test_a_tensor_that_llama_cpp_lacks_is_named() -> None:
    family = family_of({"model_type": "qwen3_moe"})
    for name in ("model.layers.0.self_attn.sinks", "model.visual.weight", "model.layers.0.mlp.gate.scale"):
        with pytest.raises(ValueError, match=f"no tensor for {name}"):
            family.mapped(name)
    with pytest.raises(ValueError, match=r"no tensors for experts at model\.layers\.0\.feed_forward"):
        expert_tensors("model.layers.0.feed_forward", None)  # type: ignore[arg-type]


@given(heads=st.integers(1, 5), half=st.integers(1, 4), columns=st.integers(1, 3))
def test_rotary_rows_alternate_between_the_halves_of_a_head(heads: int, half: int, columns: int) -> None:
    change, config = RotaryRows("heads"), {"heads": heads}
    rows = torch.arange(heads * 2 * half * columns).reshape(-1, columns)
    (split,) = change.split(rows, config)
    for head in range(heads):
        own, moved = (one[head * 2 * half : (head + 1) * 2 * half] for one in (rows, split))
        assert torch.equal(moved[::2], own[:half])
        assert torch.equal(moved[1::2], own[half:])
    assert torch.equal(change.join([split], config), rows)


@given(heads=st.integers(1, 4), keys=st.integers(1, 4), values=st.integers(1, 4), rank=st.integers(1, 4))
def test_latent_heads_come_apart_and_together(heads: int, keys: int, values: int, rank: int) -> None:
    config = {"num_attention_heads": heads, "qk_nope_head_dim": keys, "v_head_dim": values}
    whole = torch.arange(heads * (keys + values) * rank).reshape(-1, rank)
    key, value = LatentHeads().split(whole, config)
    assert (tuple(key.shape), tuple(value.shape)) == ((heads, rank, keys), (heads, values, rank))
    assert torch.equal(key[0].T, whole[:keys])
    assert torch.equal(value[0], whole[keys : keys + values])
    assert torch.equal(LatentHeads().join([key, value], config), whole)


@given(heads=st.integers(1, 3), each=st.integers(1, 3), width=st.integers(1, 3), values=st.integers(1, 3))
def test_rows_of_a_delta_net_are_gathered_by_what_they_are(heads: int, each: int, width: int, values: int) -> None:
    """Every row says what it is of: a key head, one of q, k, v, z, and the place in it."""
    config = {"linear_num_key_heads": heads, "linear_key_head_dim": width}
    config |= {"linear_num_value_heads": heads * each, "linear_value_head_dim": values}
    sizes = {"q": width, "k": width, "v": each * values, "z": each * values}
    whole = [(head, part, i) for head in range(heads) for part, size in sizes.items() for i in range(size)]
    wanted = [[(head, p, i) for p in parts for head in range(heads) for i in range(sizes[p])] for parts in ("qkv", "z")]
    rows = torch.arange(len(whole))[:, None] * 10 + torch.arange(2)
    split = DeltaHeads().split(rows, config)
    assert [[whole[row // 10] for row in part[:, 0].tolist()] for part in split] == wanted
    assert torch.equal(DeltaHeads().join(split, config), rows)
    blocks = [part.numpy() for part in split]
    assert np.array_equal(DeltaHeads().join(blocks, config), rows.numpy())  # type: ignore[arg-type]


def test_numbers_of_a_delta_net_come_back_from_float32() -> None:
    weights = torch.linspace(-3, 3, 97).bfloat16()
    for change, held in ((NormPlusOne(), weights.double() + 1), (DecayRate(), -weights.double().exp())):
        (split,) = change.split(weights, {})
        assert torch.allclose(split.double(), held, rtol=1e-6)
        assert split.dtype == torch.float32
        assert torch.equal(change.join([split], {}).bfloat16(), weights)
    kernel = torch.arange(6).reshape(3, 1, 2)
    (split,) = DepthwiseKernel().split(kernel, {})
    assert torch.equal(split, kernel[:, 0])
    assert torch.equal(DepthwiseKernel().join([split], {}), kernel)


def test_layers_of_full_attention_are_at_an_interval() -> None:
    """As conversions write it, with the depth of a file that also predicts further tokens."""
    config = config_of("qwen3_next_80b_a3b", layer_types=["linear_attention"] * 2 + ["full_attention"])
    config["num_hidden_layers"] = 3
    family = family_of(config)
    stored = as_stored(family.metadata(config), family.architecture)
    assert stored["qwen3next.full_attention_interval"] == 3
    stored |= {"qwen3next.block_count": 8, "qwen3next.nextn_predict_layers": 1}
    kinds = family.config(stored, TENSORS)["layer_types"]
    assert [kind == "full_attention" for kind in kinds] == [False, False, True, False, False, True, False]


def test_a_single_row_is_a_vector_in_the_file() -> None:
    row = torch.arange(5)[None]
    assert tuple(VectorRow().split(row, {})[0].shape) == (5,)
    assert torch.equal(VectorRow().join(VectorRow().split(row, {}), {}), row)


@given(st.floats(1e-9, 1e9), st.integers(1, 6))
def test_short_numbers_survive_float32(number: float, digits: int) -> None:
    decimal = float(f"{number:.{digits}g}")
    assert short(float(np.float32(decimal))) == decimal


def test_families_of_one_architecture_are_distinguished() -> None:
    kinds = {(family.architecture, family.sigmoid) for family in FAMILIES}
    assert len(kinds) == len(FAMILIES)
