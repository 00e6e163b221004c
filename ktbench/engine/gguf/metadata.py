"""What of each family's Hugging Face configuration is GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping

from ktbench.engine.gguf.facts import (
    DEPTH,
    DeltaWidths,
    Entry,
    Fact,
    Fixed,
    Gating,
    GreedyGroups,
    Groups,
    HasTensor,
    HeadWidth,
    Interval,
    LatentWidths,
    Rope,
    Told,
    Window,
)


def _experts(key: str) -> Fact:
    """Transformers keeps some families' count under another key than their files have."""
    return Fact(keys=(key, "num_local_experts", "n_routed_experts"), field="expert_count")


_EXPERT_FFN = Fact(keys=("moe_intermediate_size",), field="expert_feed_forward_length")
_KV_HEADS = Fact(keys=("num_key_value_heads",), field="attention.head_count_kv")
_NORM = Fact(keys=("norm_topk_prob",), field="expert_weights_norm", kind="bool", absent=False)
# Families of which llama.cpp reads neither: what a file may say of them all the same (LLAMA_EXPERT_GATING_FUNC_TYPE).
_NORMED, _SOFTMAX = Told("expert_weights_norm", (True,)), Told("expert_gating_func", (0, 1))
_SOFTMAX_OF_CHOSEN = Told("expert_gating_func", (0, 3))

_COMMON: tuple[Entry, ...] = (
    DEPTH,
    Fact(keys=("max_position_embeddings",), field="context_length"),
    Fact(keys=("hidden_size",), field="embedding_length"),
    Fact(keys=("intermediate_size",), field="feed_forward_length"),
    Fact(keys=("num_attention_heads",), field="attention.head_count"),
    Fact(keys=("rms_norm_eps",), field="attention.layer_norm_rms_epsilon", kind="float"),
    Fact(keys=("num_experts_per_tok",), field="expert_used_count"),
    Fact(keys=("vocab_size",), field="vocab_size"),
    Fixed("hidden_act", "silu"),
    HasTensor(key="tie_word_embeddings", tensor="output.weight", inverted=True),
)
_QWEN: tuple[Entry, ...] = (
    _EXPERT_FFN,
    _KV_HEADS,
    _experts("num_experts"),
    Rope(),
    _SOFTMAX,
    Fixed("decoder_sparse_step", 1),
    Fixed("mlp_only_layers", []),
    Fixed("use_sliding_window", False),
)
_SHARED_FFN = Fact(keys=("shared_expert_intermediate_size",), field="expert_shared_feed_forward_length")
# Dense layers first, then layers of routed and shared experts.
_SHARED: tuple[Entry, ...] = (
    _EXPERT_FFN,
    _experts("n_routed_experts"),
    Fact(keys=("n_shared_experts",), field="expert_shared_count"),
    Fact(keys=("first_k_dense_replace",), field="leading_dense_block_count", absent=0),
    Fact(keys=("routed_scaling_factor",), field="expert_weights_scale", kind="float", absent=1.0),
)
_LATENT: tuple[Entry, ...] = (
    *_SHARED,
    Fact(keys=("kv_lora_rank",), field="attention.kv_lora_rank"),
    # llama.cpp needs it in all depths but those of DeepSeek-V2-Lite; 0 is none.
    Fact(keys=("q_lora_rank",), field="attention.q_lora_rank", absent=0, none=0),
    LatentWidths(),
    Rope(latent=True),
    Fixed("attention_bias", False),
)
# By model type of Transformers.
ENTRIES: Mapping[str, tuple[Entry, ...]] = {
    "qwen3_moe": (
        *_COMMON,
        *_QWEN,
        HeadWidth(),
        Fixed("norm_topk_prob", True, "expert_weights_norm"),
        Fixed("attention_bias", False),
    ),
    "qwen2_moe": (
        *_COMMON,
        *_QWEN,
        HeadWidth(whole=True),
        _SHARED_FFN,
        Fixed("norm_topk_prob", False, "expert_weights_norm"),
        HasTensor(key="qkv_bias", tensor="blk.0.attn_q.bias"),
    ),
    "mixtral": (
        *_COMMON,
        _KV_HEADS,
        _experts("num_local_experts"),
        Rope(),
        HeadWidth(),
        _NORMED,
        _SOFTMAX,
        Fixed("sliding_window", None),
    ),
    "deepseek_v2": (
        *_COMMON,
        *_LATENT,
        GreedyGroups(),
        Gating(),
        Fixed("norm_topk_prob", False, "expert_weights_norm"),
        Fixed("mlp_bias", False),
    ),
    "deepseek_v3": (*_COMMON, *_LATENT, Groups(), Gating(sigmoid=True), _NORM, Fixed("rope_interleave", True)),
    "glm4_moe": (
        *_COMMON,
        *_SHARED,
        _KV_HEADS,
        _NORM,
        Groups(),
        Gating(sigmoid=True),
        HeadWidth(),
        Rope(partial=True),
        HasTensor(key="attention_bias", tensor="blk.0.attn_q.bias"),
        HasTensor(key="use_qk_norm", tensor="blk.0.attn_q_norm.weight"),
    ),
    "gpt_oss": (
        *_COMMON,
        Fact(keys=("intermediate_size",), field="expert_feed_forward_length"),
        _KV_HEADS,
        _experts("num_local_experts"),
        HeadWidth(),
        Rope(truncate=False),
        Window(),
        _SOFTMAX_OF_CHOSEN,
        Fixed("swiglu_limit", 7.0),
        Fixed("swiglu_alpha", 1.702),
        Fixed("attention_bias", True),
    ),
    "qwen3_next": (
        *_COMMON,
        _EXPERT_FFN,
        _KV_HEADS,
        _experts("num_experts"),
        _SHARED_FFN,
        HeadWidth(),
        Rope(partial=True),
        Interval(),
        Fact(keys=("linear_conv_kernel_dim",), field="ssm.conv_kernel"),
        Fact(keys=("linear_key_head_dim",), field="ssm.state_size"),
        Fact(keys=("linear_num_key_heads",), field="ssm.group_count"),
        DeltaWidths(),
        _SOFTMAX,
        Fixed("decoder_sparse_step", 1),
        Fixed("mlp_only_layers", []),
        Fixed("norm_topk_prob", True, "expert_weights_norm"),
        Fixed("attention_bias", False),
    ),
    "minimax_m2": (
        *_COMMON,
        Fact(keys=("intermediate_size",), field="expert_feed_forward_length"),
        _KV_HEADS,
        _experts("num_local_experts"),
        HeadWidth(),
        Rope(partial=True),
        Gating(sigmoid=True),
        _NORMED,
        Fixed("tie_word_embeddings", False),
    ),
}
