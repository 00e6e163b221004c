"""What each family's metadata is made of: facts with a field, facts that llama.cpp takes for granted, and the rest."""

from __future__ import annotations

from ktbench.engine.gguf.metadata import (
    Depth,
    Entry,
    Fact,
    Fixed,
    HeadWidth,
    Held,
    Window,
)
from ktbench.engine.gguf.rope import LatentWidths, Rope
from ktbench.engine.gguf.scoring import Gating, GreedyGroups, Groups

_FFN = Fact(keys=("intermediate_size",), field="feed_forward_length")
_EXPERT_FFN = Fact(keys=("moe_intermediate_size",), field="expert_feed_forward_length")
_KV_HEADS = Fact(keys=("num_key_value_heads",), field="attention.head_count_kv")
_DENSE_LAYERS = Fact(keys=("first_k_dense_replace",), field="leading_dense_block_count", absent=0)
_SCALE = Fact(keys=("routed_scaling_factor",), field="expert_weights_scale", kind="float", absent=1.0)
_NORM = Fact(keys=("norm_topk_prob",), field="expert_weights_norm", kind="bool", absent=False)

COMMON: tuple[Entry, ...] = (
    Depth(),
    Fact(keys=("max_position_embeddings",), field="context_length"),
    Fact(keys=("hidden_size",), field="embedding_length"),
    Fact(keys=("num_attention_heads",), field="attention.head_count"),
    Fact(keys=("rms_norm_eps",), field="attention.layer_norm_rms_epsilon", kind="float"),
    Fact(keys=("num_experts_per_tok",), field="expert_used_count"),
    Fact(keys=("vocab_size",), field="vocab_size"),
    Fixed(key="hidden_act", value="silu"),
    Held(key="tie_word_embeddings", tensor="output.weight", inverted=True),
)


def _experts(key: str) -> Fact:
    """Transformers keeps some families' count under another key than their files have."""
    return Fact(keys=(key, "num_local_experts", "n_routed_experts"), field="expert_count")


_QWEN: tuple[Entry, ...] = (
    _FFN,
    _EXPERT_FFN,
    _KV_HEADS,
    _experts("num_experts"),
    Rope(),
    Fixed(key="decoder_sparse_step", value=1),
    Fixed(key="mlp_only_layers", value=[]),
    Fixed(key="use_sliding_window", value=False),
)
QWEN3_MOE: tuple[Entry, ...] = (
    *_QWEN,
    HeadWidth(),
    Fixed(key="norm_topk_prob", value=True),
    Fixed(key="attention_bias", value=False),
)
QWEN2_MOE: tuple[Entry, ...] = (
    *_QWEN,
    HeadWidth(whole=True),
    Fact(keys=("shared_expert_intermediate_size",), field="expert_shared_feed_forward_length"),
    Fixed(key="norm_topk_prob", value=False),
    Held(key="qkv_bias", tensor="blk.0.attn_q.bias"),
)
MIXTRAL: tuple[Entry, ...] = (
    _FFN,
    _KV_HEADS,
    _experts("num_local_experts"),
    Rope(),
    HeadWidth(),
    Fixed(key="sliding_window", value=None),
)
_LATENT: tuple[Entry, ...] = (
    _FFN,
    _EXPERT_FFN,
    _experts("n_routed_experts"),
    Fact(keys=("n_shared_experts",), field="expert_shared_count"),
    _DENSE_LAYERS,
    _SCALE,
    Fact(keys=("kv_lora_rank",), field="attention.kv_lora_rank"),
    # llama.cpp asks for it in all depths but those of DeepSeek-V2-Lite; 0 is none.
    Fact(keys=("q_lora_rank",), field="attention.q_lora_rank", absent=0, none=0),
    LatentWidths(),
    Rope(latent=True),
    Fixed(key="attention_bias", value=False),
)
DEEPSEEK_V2: tuple[Entry, ...] = (
    *_LATENT,
    GreedyGroups(),
    Gating(),
    Fixed(key="norm_topk_prob", value=False),
    Fixed(key="mlp_bias", value=False),
)
DEEPSEEK_V3: tuple[Entry, ...] = (
    *_LATENT,
    Groups(),
    Gating(sigmoid=True),
    _NORM,
    Fixed(key="rope_interleave", value=True),
)
GLM4_MOE: tuple[Entry, ...] = (
    _FFN,
    _EXPERT_FFN,
    _KV_HEADS,
    _experts("n_routed_experts"),
    Fact(keys=("n_shared_experts",), field="expert_shared_count"),
    _DENSE_LAYERS,
    _SCALE,
    _NORM,
    Groups(),
    Gating(sigmoid=True),
    HeadWidth(),
    Rope(partial=True),
    Held(key="attention_bias", tensor="blk.0.attn_q.bias"),
    Held(key="use_qk_norm", tensor="blk.0.attn_q_norm.weight"),
)
GPT_OSS: tuple[Entry, ...] = (
    _FFN,
    Fact(keys=("intermediate_size",), field="expert_feed_forward_length"),
    _KV_HEADS,
    _experts("num_local_experts"),
    HeadWidth(),
    Rope(truncate=False),
    Window(),
    Fixed(key="swiglu_limit", value=7.0),
    Fixed(key="swiglu_alpha", value=1.702),
    Fixed(key="attention_bias", value=True),
)
