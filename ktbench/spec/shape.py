"""Shape of a Mixture-of-Experts model, read from the facts of its Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Families spell the same fact differently in their configuration files; the first key present wins.
_LAYERS = ("num_hidden_layers",)
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "moe_num_primary_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
    "moe_num_active_primary_experts",
)
_EXPERT_FFN = ("moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")
_DENSE_FFN = ("dense_intermediate_size", "prefix_dense_intermediate_size", "intermediate_size")
_FIRST_DENSE = ("first_k_dense_replace", "num_dense_layers")
_SHARED_FFN = ("shared_expert_intermediate_size", "shared_experts_intermediate_size", "shared_intermediate_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
# These have a dense part beside the experts of every layer and no key that says so.
_DENSE_BESIDE_EXPERTS = ("gemma4_text", "hunyuan_v1_moe")
_EXPERT_BIASES = ("gpt_oss",)
# These have a gated linear attention in most layers and a gated grouped-query attention in the others.
_GATED_LINEAR = ("qwen3_next",)
_NESTED = "text_config"
# Released with code of their own, which is never run, around an architecture that Transformers has.
_SAME_AS = {"kimi_k2": "deepseek_v3"}
_TEXT_ONLY = ("kimi_k25",)  # of which Transformers has but the language model


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEShape:
    """Sizes that decide work and memory. Widths are in elements; `shared_ffn` is 0 without a shared expert.

    `expert_biases` counts the biases of one routed expert, 0 where its projections have none; `latent_params` those of
    `attention_params` that expand a layer's latents to keys and values, 0 where attention has none.
    """

    hidden: int
    expert_ffn: int
    experts: int
    top_k: int
    layers: int
    dense_layers: int
    dense_ffn: int
    shared_ffn: int
    attention_params: int
    vocab: int
    tied_head: bool
    expert_biases: int = 0
    latent_params: int = 0

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def expert_params(self) -> int:
        """Weights of one routed expert: gate, up and down projection."""
        return 3 * self.hidden * self.expert_ffn

    @property
    def routed_params(self) -> int:
        """Weights of all routed experts of all layers."""
        return self.moe_layers * self.experts * self.expert_params

    @property
    def other_params(self) -> int:
        """All but the routed matrices: attention, router, shared and dense layers, embedding, head, expert biases.

        Norms and the biases of attention are left out: far below 1 % in every family.
        """
        router = self.experts * (self.hidden + self.expert_biases)
        shared = self.moe_layers * (3 * self.hidden * self.shared_ffn + router)
        dense = self.dense_layers * 3 * self.hidden * self.dense_ffn
        tables = self.vocab * self.hidden * (1 if self.tied_head else 2)
        return self.layers * self.attention_params + shared + dense + tables


def moe_shape(config: Mapping[str, Any]) -> MoEShape:
    """Shape behind a Hugging Face `config.json`; of a multimodal model that of its `text_config`.

    Attention other than grouped-query, latent and gated linear attention (sparse, compressed) counts as grouped-query
    with the same heads. Raises ValueError naming the keys that are missing where the configuration does not tell a
    shape.
    """
    facts = text_config(config)
    ffn, hidden = _number(facts, _EXPERT_FFN), _number(facts, ("hidden_size",))
    is_moe = _has_experts(facts)
    return MoEShape(
        hidden=hidden,
        expert_ffn=ffn,
        experts=_number(facts, _EXPERTS),
        top_k=_number(facts, _TOP_K),
        layers=len(is_moe),
        dense_layers=is_moe.count(False),
        dense_ffn=_number(facts, _DENSE_FFN, ffn),
        shared_ffn=_shared_ffn(facts, ffn),
        attention_params=_attention_params(facts, len(is_moe)),
        vocab=_number(facts, ("vocab_size",)),
        tied_head=bool(facts.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        expert_biases=2 * ffn + hidden if facts.get("model_type") in _EXPERT_BIASES else 0,
        latent_params=_latent_params(facts) if facts.get("kv_lora_rank") else 0,
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: all of it, but of a multimodal model its `text_config`."""
    nested: Mapping[str, Any] | None = config.get(_NESTED)
    return nested or config


def known_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A released configuration under the `model_type` by which Transformers knows its architecture.

    How its weights are quantised is left to who reads them.
    """
    facts = dict(text_config(config) if config.get("model_type") in _TEXT_ONLY else config)
    facts.pop("quantization_config", None)
    if (kind := facts.get("model_type")) in _SAME_AS:
        facts.pop("auto_map", None)
        facts["model_type"] = _SAME_AS[kind]
    return facts


def with_experts(config: Mapping[str, Any], experts: int) -> dict[str, Any]:
    """The configuration with so many routed experts, under the key that its family counts them by."""
    if config.get(_NESTED):
        return dict(config) | {_NESTED: with_experts(config[_NESTED], experts)}
    return dict(config) | {next(key for key in _EXPERTS if config.get(key) is not None): experts}


def _number(config: Mapping[str, Any], keys: tuple[str, ...], default: int | None = None) -> int:
    """The first of `keys` that is set. Some families list it layer by layer: all alike, or there is no one number."""
    key = next((key for key in keys if config.get(key) is not None), None)
    if key is None and default is None:
        is_of_experts = keys in (_EXPERTS, _TOP_K, _EXPERT_FFN)
        kind = ": not a Mixture-of-Experts model" if is_of_experts else ": cannot tell the model's shape"
        raise ValueError(f"model configuration of {config.get('model_type')} has none of {', '.join(keys)}{kind}")
    value = default if key is None else config[key]
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ValueError(f"model configuration has {key} that differs from layer to layer: {value}")
        value = value[0]
    return int(value)  # type: ignore[arg-type]


def _has_experts(config: Mapping[str, Any]) -> list[bool]:
    """For each layer whether it has routed experts, by whichever of its family's rules excludes it or none does."""
    layers = _number(config, _LAYERS)
    if kinds := config.get("mlp_layer_types"):
        return [kind != "dense" for kind in kinds[:layers]]
    first = _number(config, _FIRST_DENSE, 0)
    named = config.get("mlp_only_layers") or ()
    return [
        layer >= first and layer not in named and all(rule(config, layer, layers) for rule in (_qwen, _jamba, _ernie))
        for layer in range(layers)
    ]


def _qwen(config: Mapping[str, Any], layer: int, _layers: int) -> bool:
    return (layer + 1) % _number(config, ("decoder_sparse_step",), 1) == 0


def _jamba(config: Mapping[str, Any], layer: int, _layers: int) -> bool:
    return layer % _number(config, ("expert_layer_period",), 1) == _number(config, ("expert_layer_offset",), 0)


def _ernie(config: Mapping[str, Any], layer: int, layers: int) -> bool:
    """Its last index may be -1: the last layer."""
    last = _number(config, ("moe_layer_end_index",), -1) % layers
    in_step = (layer + 1) % _number(config, ("moe_layer_interval",), 1) == 0
    return in_step and _number(config, ("moe_layer_start_index",), 0) <= layer <= last


def _shared_ffn(config: Mapping[str, Any], ffn: int) -> int:
    if config.get("model_type") in _DENSE_BESIDE_EXPERTS:
        return _number(config, _DENSE_FFN)
    return _number(config, _SHARED_FFN, 0) or _number(config, _SHARED, 0) * ffn


def _attention_params(config: Mapping[str, Any], layers: int) -> int:
    """Weights of the attention of a layer; where layers differ their mean."""
    if config.get("kv_lora_rank"):
        return _mla_params(config)
    if config.get("model_type") not in _GATED_LINEAR:
        return _gqa_params(config)
    heads, head = _number(config, ("num_attention_heads",)), _number(config, ("head_dim",))
    gated = _gqa_params(config) + _number(config, ("hidden_size",)) * heads * head
    whole = layers // _number(config, ("full_attention_interval",), 4)
    return (whole * gated + (layers - whole) * _gated_linear_params(config)) // layers


def _gated_linear_params(config: Mapping[str, Any]) -> int:
    """Gated delta net: query, key, value, gate, decay and output projection; its short convolution is left out."""
    hidden, value_heads = _number(config, ("hidden_size",)), _number(config, ("linear_num_value_heads",))
    keys = _number(config, ("linear_num_key_heads",)) * _number(config, ("linear_key_head_dim",))
    values = value_heads * _number(config, ("linear_value_head_dim",))
    return hidden * (2 * keys + 3 * values + 2 * value_heads)


def _gqa_params(config: Mapping[str, Any]) -> int:
    """Grouped-query attention: query, key, value and output projection."""
    hidden, heads = _number(config, ("hidden_size",)), _number(config, ("num_attention_heads",))
    head = _number(config, ("head_dim",), hidden // heads)
    kv_heads = _number(config, ("num_key_value_heads",), heads)
    return hidden * head * (2 * heads + 2 * kv_heads)


def _mla_params(config: Mapping[str, Any]) -> int:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): low-rank query and key-value projections, then output."""
    hidden, heads = _number(config, ("hidden_size",)), _number(config, ("num_attention_heads",))
    nope, rope, value = (_number(config, (key,)) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank, q_rank = _number(config, ("kv_lora_rank",)), config.get("q_lora_rank")
    q_width = heads * (nope + rope)
    query = hidden * q_width if q_rank is None else int(q_rank) * (hidden + q_width)
    return query + hidden * (rank + rope) + _latent_params(config) + heads * value * hidden


def _latent_params(config: Mapping[str, Any]) -> int:
    """The up-projection of a latent to the keys, without rotation, and values of all heads."""
    sizes = ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    heads, rank, nope, value = (_number(config, (key,)) for key in sizes)
    return rank * heads * (nope + value)
