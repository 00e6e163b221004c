"""Sizes against numbers worked out by hand for DeepSeek-V3 and Qwen2-57B, and against the shape of any model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.step.work import sizes_of
from ktbench.spec.weights import expert_bytes
from tests.sim.real import real_cell

V3 = sizes_of(real_cell("deepseek_v3"))
QWEN2 = sizes_of(real_cell("qwen2_57b_a14b"))


def test_experts_of_deepseek_v3_are_those_of_the_papers_table() -> None:
    """KTransformers, Table 1: 654 B on the CPU, of which a token activates 20.43 B, 40.87 GB in bf16."""
    params = 3 * 7168 * 2048
    assert (V3.experts, V3.top_k, V3.hidden, V3.expert_ffn) == (256, 8, 7168, 2048)
    assert (V3.expert_bytes, V3.expert_flops) == (2 * params, 2 * params)
    assert 58 * 256 * params / 1e9 == pytest.approx(654, abs=0.5)
    assert 58 * V3.top_k * V3.expert_flops / 2 / 1e9 == pytest.approx(20.43, abs=0.005)
    assert 58 * V3.top_k * V3.expert_bytes / 1e9 == pytest.approx(40.87, abs=0.005)


def test_latent_attention_of_deepseek_v3() -> None:
    """Queries through rank 1536, keys and values through 512 and 64 rotary ones; 128 heads of 128 + 64 and 128."""
    query = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys, up = 7168 * (512 + 64), 512 * 128 * (128 + 128)
    assert V3.latent
    assert V3.attention_params == query + keys + 128 * 128 * 7168
    assert V3.fixed_params == up
    assert V3.key_bytes == 576 * 2
    assert V3.score_flops == 2 * 128 * (128 + 64) + 2 * 128 * 128


def test_parts_of_deepseek_v3_beside_the_experts() -> None:
    """KTransformers, Table 1: 17 B on the GPU, embedding and head among them."""
    assert V3.shared_params == 3 * 7168 * 2048
    assert V3.dense_params == 3 * 7168 * 18432
    assert V3.head_params == 129280 * 7168
    assert V3.gate_bytes == 256 * 7168 * 4
    layers = 61 * (V3.attention_params + V3.fixed_params) + 3 * V3.dense_params
    beside = 58 * (V3.shared_params + V3.gate_bytes // 4)
    assert (layers + beside + 2 * V3.head_params) / 1e9 == pytest.approx(17, abs=0.2)


def test_grouped_query_attention_of_qwen2() -> None:
    """28 heads of 128 that share 4 for keys and values."""
    assert not QWEN2.latent
    assert QWEN2.attention_params == 3584 * 128 * (28 + 4 + 4 + 28)
    assert QWEN2.fixed_params == 0
    assert QWEN2.key_bytes == 2 * 4 * 128 * 2
    assert QWEN2.score_flops == 4 * 28 * 128
    assert QWEN2.shared_params == 3 * 3584 * 20480


@pytest.mark.parametrize(
    ("model", "family"), [("deepseek_v3", "deepseek_v3"), ("kimi_k2", "deepseek_v3"), ("qwen2_57b_a14b", "qwen2_moe")]
)
def test_families_go_by_the_type_of_their_configuration(model: str, family: str) -> None:
    assert sizes_of(real_cell(model)).family == family


@pytest.mark.parametrize(("precision", "bytes_"), [("bf16", 2.0), ("int8", 1.0), ("int4_g32", 0.5), ("int4_g128", 0.5)])
def test_precisions_count_their_bytes(precision: str, bytes_: float) -> None:
    """int8 has a scale for each row as well."""
    sizes = sizes_of(real_cell("deepseek_v3", precision=precision))
    params = 3 * 7168 * 2048
    assert sizes.expert_bytes == pytest.approx(bytes_ * params, rel=0.003)
    assert sizes.bytes_per_param == pytest.approx(bytes_, rel=0.003)
    assert sizes.expert_flops == 2 * params


def test_precisions_of_host_and_device_are_apart() -> None:
    spec = replace(real_cell("deepseek_v3", precision="int4_g32"), device_precision="bf16")
    assert sizes_of(spec).bytes_per_param == 2.0
    assert sizes_of(spec).expert_bytes == 3 * 7168 * 2048 // 2


def test_keys_and_the_up_projection_stay_in_bf16() -> None:
    sizes = sizes_of(real_cell("deepseek_v3", precision="int4_g32"))
    assert sizes.attention_bytes(0) == sizes.attention_params / 2 + sizes.fixed_params * 2
    assert sizes.attention_bytes(1000) - sizes.attention_bytes(0) == 1000 * 576 * 2


def test_base_runs_in_bf16_whatever_is_asked() -> None:
    base = real_cell("deepseek_v3", precision="int8", avx512=False, dynamic=False, numa=False, cuda_graph=False)
    assert not base.is_quantised
    assert sizes_of(base).expert_bytes == 2 * 3 * 7168 * 2048


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Qwen2's or DeepSeek's attention around experts of any size."""

    def number(most: int) -> int:
        return draw(st.integers(1, most))

    experts, kv_heads, layers = number(64), number(8), 1 + number(6)
    heads = kv_heads * number(4)
    config: dict[str, Any] = {
        "hidden_size": 16 * number(64), "num_hidden_layers": layers, "intermediate_size": 16 * number(64),
        "moe_intermediate_size": 16 * number(64), "num_experts_per_tok": draw(st.integers(1, experts)),
        "num_attention_heads": heads, "vocab_size": number(4096),
    }  # fmt: skip
    if draw(st.booleans()):
        config |= {
            "model_type": "deepseek_v3", "n_routed_experts": experts, "n_shared_experts": draw(st.integers(0, 2)),
            "first_k_dense_replace": draw(st.integers(0, layers - 1)), "kv_lora_rank": number(64),
            "q_lora_rank": draw(st.none() | st.integers(1, 64)), "qk_nope_head_dim": number(32),
            "qk_rope_head_dim": number(16), "v_head_dim": number(32),
        }  # fmt: skip
    else:
        config |= {
            "model_type": "qwen2_moe", "num_experts": experts, "num_key_value_heads": kv_heads,
            "shared_expert_intermediate_size": 16 * draw(st.integers(0, 64)), "head_dim": 2 * number(32),
        }  # fmt: skip
    return ModelSpec(name="any", config=config, full_layers=layers, full_vocab=int(config["vocab_size"]))


@given(models())
def test_parts_add_up_to_the_shape(model: ModelSpec) -> None:
    sizes, shape = sizes_of(real_cell(model)), model.shape
    attention = shape.layers * (sizes.attention_params + sizes.fixed_params)
    beside = shape.moe_layers * (sizes.shared_params + sizes.gate_bytes // 4)
    assert attention + beside + shape.dense_layers * sizes.dense_params + 2 * sizes.head_params == shape.other_params
    assert shape.moe_layers * sizes.experts * sizes.expert_flops // 2 == shape.routed_params
    assert sizes.expert_bytes == expert_bytes(shape, "bf16")
