"""Every family of Transformers with an experts module: a tiny configuration of it, or why it has none."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ktbench.spec.run_spec import ModelSpec

LAYERS, HIDDEN, EXPERTS, TOP_K, VOCAB = 4, 64, 8, 2, 256
# Where every token goes to all experts, the last bits of a hidden state do not decide which experts it meets.
ALL: dict[str, Any] = {"num_experts_per_tok": EXPERTS, "n_group": 1, "topk_group": 1}

# Sizes by the keys of the families; a family takes those that its configuration sets.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "initializer_range": 0.1,
    "max_position_embeddings": 512,
    "model_max_length": 512,
    # Routed, shared and dense experts.
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_experts_per_token": TOP_K,
    "moe_topk": TOP_K,
    "moe_k": TOP_K,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "shared_expert_intermediate_size": 48,
    "shared_experts_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "dense_intermediate_size": 96,
    "router_hidden_size": 32,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    # Attention of every kind. Sparse attention selects all there is: what it selects is not the subject here.
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "index_topk": 64,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_dt_rank": 8,
    "mamba_chunk_size": 8,
}
# Tokens that mean something lie outside the small vocabulary.
_UNSET = ("pad_token_id", "bos_token_id", "eos_token_id")

_NESTED = "text_config"
_CLASS = re.compile(r"^class (\w+Experts)\(", re.MULTILINE)

_LATENT = {"num_key_value_heads": 4}
_GROUPS = _LATENT | {"n_group": 2, "topk_group": 1}
_DBRX = {"n_layers": LAYERS, "attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0}}
_HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
_ROUTED = {"n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K}

# Causal language models that the engine runs, by model_type: what differs from the sizes above.
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "aria_text": {},
    "axk1": _GROUPS,
    "axk2": _LATENT | {"gated_norm_rank": 8},
    "bailing_hybrid": _LATENT | _HYBRID,
    "beam": {},
    "cohere2_moe": {"num_shared_experts": 1},
    "deepseek_v2": _LATENT | _ROUTED | {"n_shared_experts": 1},
    "deepseek_v3": _GROUPS,
    "deepseek_v32": _GROUPS,
    "deepseek_v4": {
        "num_key_value_heads": 1,
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "o_groups": 2,
        "o_lora_rank": 16,
        "hc_mult": 2,
    },
    "dots1": _ROUTED | {"n_shared_experts": 1},
    "dots3_note_text": _LATENT | {"layer_types": ["indexed_attention"] * LAYERS},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {},
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": EXPERTS,
        "top_k_experts": TOP_K,
        "moe_intermediate_size": 32,
        "global_head_dim": 16,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "glm4_moe": {},
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "gpt_oss": {"intermediate_size": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": _HYBRID,
    "granitemoeshared": {},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hy_v3": {},
    "hy_v4": _LATENT | {"hc_mult": 2},
    "inkling_text": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": _LATENT | _HYBRID,
    "kolibri1": {},
    "laguna": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "lara_mini": ALL,
    "mellum": {},
    "mimo_v2_flash": {},
    "minimax": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "mixtral": {},
    "olmoe": {},
    "phimoe": {},
    "qwen2_moe": {},
    "qwen3_5_moe": {_NESTED: {}},  # the text model of a multimodal configuration
    "qwen3_5_moe_text": _HYBRID,
    "qwen3_moe": {},
    "qwen3_next": _HYBRID,
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "hc_count": 2,
        "hc_lowrank": 16,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 64,
        "indexer_compress_ratio": 2,
    },
    "solar_open": {},
    "zaya": {"num_experts_per_tok": 1},
}

# Causal language models whose experts are not the engine's: changes as above, and what it says about them.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dbrx": (_DBRX, "DbrxExperts: has no gate_up_proj of three dimensions"),
    "inkling2_text": ({}, "Inkling2Experts: activates by Inkling2SoftcappedSwiGLU"),
    "inkling2_loop_text": ({}, "Inkling2LoopExperts: activates by Inkling2LoopSoftcappedSwiGLU"),
    "jetmoe": ({}, "JetMoeParallelExperts: is called with (inputs, expert_size), not with (hidden, ids, weights)"),
    "llama4_text": ({}, "Llama4TextExperts: is called with (hidden_states), not with (hidden, ids, weights)"),
    "longcat_flash": (_LATENT | {"zero_expert_num": 2}, "LongcatFlashExperts: has 2 experts that pass their input on"),
    "nemotron_h": ({}, "NemotronHExperts: has no gate"),
}

# Classes of experts that no causal language model of text alone has, and what they are of instead.
_NO_TEXT_MODEL = "no causal language model of text alone"
_SHARED = "shared experts, which the device role runs"
ABSENT: dict[str, str] = {
    "DeepseekOcr2TextExperts": _NO_TEXT_MODEL,
    "DiffusionGemmaTextExperts": "a diffusion model: tokens are not drawn one after the other",
    "Ernie4_5_VLMoeMoeExperts": _NO_TEXT_MODEL,
    "Glm4vMoeTextExperts": _NO_TEXT_MODEL,
    "Glm5NextTextExperts": _NO_TEXT_MODEL,
    "HYV4VLExperts": _NO_TEXT_MODEL,
    "InklingSharedExperts": _SHARED,
    "Mistral4Experts": _NO_TEXT_MODEL,
    "MistralLarge4TextExperts": _NO_TEXT_MODEL,
    "MuseSparkExperts": _NO_TEXT_MODEL,
    "NllbMoeExperts": "an encoder and a decoder",
    "OpenAIPrivacyFilterExperts": "a classifier of tokens",
    "Qwen3OmniMoeTalkerTextExperts": _NO_TEXT_MODEL,
    "Qwen3OmniMoeThinkerTextExperts": _NO_TEXT_MODEL,
    "Qwen3VLMoeTextExperts": _NO_TEXT_MODEL,
    "Step3p7Experts": _NO_TEXT_MODEL,
    "SwitchTransformersExperts": "an encoder and a decoder",
    "UnlimitedOcrTextExperts": _NO_TEXT_MODEL,
}


@cache
def configuration(name: str) -> PreTrainedConfig:
    """That of a tiny model of a family, whether the engine runs it or not."""
    changes = FAMILIES[name] if name in FAMILIES else REFUSED[name][0]
    kind = CONFIG_MAPPING[name]
    if _NESTED in changes:
        return kind(**{_NESTED: configuration(f"{name}_text").to_dict()})
    known = kind().to_dict()
    sizes = {key: size for key, size in _SIZES.items() if known.get(key) is not None}
    unset = {key: None for key in _UNSET if key in known}
    return kind(**(sizes | unset | changes))


def tiny(name: str, seed: int = 0) -> ModelSpec:
    """A tiny model of a family with synthetic weights."""
    config = json.loads(configuration(name).to_json_string(use_diff=False))
    return ModelSpec(name=name, config=config, full_layers=LAYERS, full_vocab=VOCAB, seed=seed)


@cache
def bare(name: str) -> PreTrainedModel:
    """The network of a family on `meta`."""
    build: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        network: PreTrainedModel = build(configuration(name), dtype=torch.bfloat16, experts_implementation="eager")
    return network


@cache
def installed() -> dict[str, str]:
    """Every class of experts in the installed Transformers, and the folder of the family that it is of."""
    files = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    return {name: file.parent.name for file in sorted(files) for name in _CLASS.findall(file.read_text("utf-8"))}
