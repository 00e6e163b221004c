"""Shape of a Mixture-of-Experts model, read from the facts of its Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Families spell the same fact differently in their configuration files; the first key present wins.
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_TOP_K = ("num_experts_per_tok", "experts_per_token")
_EXPERT_FFN = ("moe_intermediate_size", "intermediate_size")
_SHARED = ("n_shared_experts",)


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEShape:
    """Sizes that decide work and memory. Widths are in elements; `shared_ffn` is 0 without a shared expert.

    `expert_biases` counts the biases of one routed expert, 0 where its projections have none.
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
    """Shape behind a Hugging Face `config.json`.

    Raises ValueError naming the missing key where the configuration is not one of a Mixture-of-Experts model.
    """
    ffn = _first(config, _EXPERT_FFN)
    return MoEShape(
        hidden=_first(config, ("hidden_size",)),
        expert_ffn=ffn,
        experts=_first(config, _EXPERTS),
        top_k=_first(config, _TOP_K),
        layers=_first(config, ("num_hidden_layers",)),
        dense_layers=_dense_layers(config),
        dense_ffn=_first(config, ("intermediate_size",), ffn),
        shared_ffn=_shared_ffn(config, ffn),
        attention_params=_mla_params(config) if config.get("kv_lora_rank") else _gqa_params(config),
        vocab=_first(config, ("vocab_size",)),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        expert_biases=2 * ffn + _first(config, ("hidden_size",)) if config.get("model_type") == "gpt_oss" else 0,
    )


def with_experts(config: Mapping[str, Any], experts: int) -> dict[str, Any]:
    """The configuration with so many routed experts, under the key that its family counts them by."""
    return dict(config) | {next(key for key in _EXPERTS if config.get(key) is not None): experts}


def _first(config: Mapping[str, Any], keys: tuple[str, ...], default: int | None = None) -> int:
    for key in keys:
        if config.get(key) is not None:
            return int(config[key])
    if default is None:
        raise ValueError(f"model configuration has none of {', '.join(keys)}: not a Mixture-of-Experts model")
    return default


def _dense_layers(config: Mapping[str, Any]) -> int:
    """DeepSeek and GLM begin with `first_k_dense_replace` dense layers; Qwen names them one by one or by a step."""
    first = _first(config, ("first_k_dense_replace",), 0)
    named = config.get("mlp_only_layers") or ()
    step = _first(config, ("decoder_sparse_step",), 1)
    layers = range(_first(config, ("num_hidden_layers",)))
    return sum(layer < first or layer in named or (layer + 1) % step != 0 for layer in layers)


def _shared_ffn(config: Mapping[str, Any], ffn: int) -> int:
    if config.get("shared_expert_intermediate_size"):
        return int(config["shared_expert_intermediate_size"])
    return _first(config, _SHARED, 0) * ffn


def _gqa_params(config: Mapping[str, Any]) -> int:
    """Grouped-query attention: query, key, value and output projection."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return hidden * head * (2 * heads + 2 * kv_heads)


def _mla_params(config: Mapping[str, Any]) -> int:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): low-rank query and key-value projections, then output."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    nope, rope, value = (int(config[k]) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank, q_rank = int(config["kv_lora_rank"]), config.get("q_lora_rank")
    q_width = heads * (nope + rope)
    query = hidden * q_width if q_rank is None else int(q_rank) * (hidden + q_width)
    return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
