"""Numbers of a Hugging Face configuration, and what holds for all of it: types, bounds, depth, known sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ktbench.spec.errors import is_utf8

_MOST_LEVELS = 16
_MOST_BITS = 63  # of an integer
_SHOWN = 60  # characters of a value in a message
# A key with one of these words decides a size or which layers have one, unless it is of parts that are left out.
_SIZE_WORDS = {"dim", "dims", "rank", "size", "sizes", "width", "latent", "expert", "experts", "head", "heads", "topk"}
_SIZE_WORDS |= {"layer", "layers", "freq", "interleave", "interval", "offset", "pattern", "period"}
_LEFT_OUT = ("audio_", "image_", "mtp_", "vision_")
# Keys with such a word that `moe_shape` counts by, that only its families' attention or embeddings have, which count
# about, or that decide no size. Any other is refused: what it decides would be left out without a word.
_KNOWN_SIZES = """
attention_chunk_size attn_layer_offset attn_layer_period block_size chunk_size chunk_size_feed_forward
conv_kernel_size decoder_sparse_step dense_intermediate_size ep_size expert_ffn_hidden_size expert_layer_offset
expert_layer_period experts_per_token ffn_hidden_size first_k_dense_replace full_attention_interval gated_norm_rank
global_attn_every_n_layers global_head_dim head_dim heads_per_ngram hidden_size hidden_size_per_layer_input
index_block_size index_head_dim index_n_heads index_topk index_topk_blocks indexer_head_dim indexer_kv_heads
indexer_n_heads interleave_moe_layer_step intermediate_size intermediate_size_mlp kv_lora_rank layer_group_size
layer_rope_theta layer_types linear_conv_kernel_dim linear_head_dim linear_key_head_dim linear_num_heads
linear_num_key_heads linear_num_value_heads linear_value_head_dim local_layer_ids make_ngram_vocab_size_divisible_by
mamba_chunk_size mamba_d_head mamba_dt_rank mamba_head_dim mamba_n_heads mamba_num_heads max_window_layers
mlp_layer_types mlp_only_layers moe_ffn_hidden_size moe_intermediate_size moe_layer_end_index moe_layer_freq
moe_layer_interval moe_layer_start_index moe_layers moe_num_active_primary_experts moe_num_experts
moe_num_primary_experts moe_num_shared_experts moe_topk n_routed_experts n_shared_experts ngram_size
ngram_vocab_size_base no_rope_layer_interval no_rope_layers num_attention_heads num_attention_heads_per_layer
num_dense_layers num_expert_group num_experts num_experts_per_tok num_experts_per_token num_hash_layers
num_hidden_layers num_key_value_heads num_kv_shared_layers num_layers num_local_experts num_mtp_layers
num_nextn_predict_layers num_shared_experts o_lora_rank ple_conv_kernel_size ple_embed_dim ple_layer_ids
prefix_dense_intermediate_size prefix_dense_sliding_window_pattern q_lora_rank qk_head_dim qk_nope_head_dim
qk_rope_head_dim rotary_dim router_hidden_size shared_expert_intermediate_size shared_experts_intermediate_size
shared_intermediate_size short_conv_kernel_size sliding_window_pattern sliding_window_size ssm_state_size swa_head_dim
swa_num_attention_heads swa_num_key_value_heads top_k_experts topk_group unpadded_vocab_size v_head_dim vocab_size
vocab_size_per_layer_input
"""
KNOWN_SIZES = frozenset(_KNOWN_SIZES.split())


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that families call by different keys, of which the first that is set counts, and its bounds.

    `tells` is what cannot be told without it.
    """

    keys: tuple[str, ...]
    most: int
    least: int = 1
    tells: str = "cannot tell the model's shape"


def count_in(config: Mapping[str, Any], count: Count, default: int | None = None) -> int:
    """The number that a configuration has, or the default.

    A list that has it layer by layer must have the same for all. Raises ValueError in one line that names the keys
    where none of them is set and there is no default, or the key and the value which is no such number.
    """
    key = next((key for key in count.keys if config.get(key) is not None), None)
    if key is None:
        if default is None:
            kind, keys = config.get("model_type"), ", ".join(count.keys)
            raise ValueError(f"model configuration of {kind} has none of {keys}: {count.tells}")
        return default
    value = config[key]
    if isinstance(value, list) and value:
        if any(one != value[0] for one in value):
            raise wrong(key, value, "differs from layer to layer")
        value = value[0]
    if type(value) is not int:
        raise wrong(key, value, "must be a whole number")
    if not count.least <= value <= count.most:
        raise wrong(key, value, f"allowed are {count.least} to {count.most}")
    return value


def wrong(key: str, value: Any, why: str) -> ValueError:
    """An error that names a key of a configuration and its value."""
    text = repr(value)
    return ValueError(f"model configuration: {key}={text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'}: {why}")


def require_plain(config: Any) -> None:
    """Raise ValueError for a configuration that is not plain content which every format and program can hold.

    It is a mapping with a `model_type`, nested at most 16 levels deep; its keys are texts, its numbers finite and
    integers of 64 bits, its texts UTF-8.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"model configuration: holds {type(config).__name__}, must hold an object")
    for key, value in _entries(config):
        if why := _differs(value):
            raise wrong(key, value, why)
    if not isinstance(config.get("model_type"), str):
        raise ValueError("model configuration: has no model_type, is not a Hugging Face configuration")


def require_counted(facts: Mapping[str, Any]) -> None:
    """Raise ValueError for a number, a list or a pattern that decides a size and that nothing here counts by."""
    for key, value in facts.items():
        words = set(key.split("_"))
        decides = words & _SIZE_WORDS and key not in KNOWN_SIZES and not key.startswith(_LEFT_OUT)
        is_size = type(value) is int or isinstance(value, list) or ("pattern" in words and isinstance(value, str))
        if decides and is_size and value:
            raise wrong(key, value, "decides a size in a way that is not counted here")


def _entries(config: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Every key and value by its dotted path, without recursion. Raises ValueError where it is nested too deep."""
    rows: list[tuple[str, Any, int]] = [("", config, 0)]
    while rows:
        path, value, level = rows.pop()
        if level > _MOST_LEVELS:
            raise ValueError(
                f"model configuration: {path.split('.')[0]} is nested more than {_MOST_LEVELS} levels deep"
            )
        if isinstance(value, Mapping):
            for key, one in value.items():
                if not isinstance(key, str):
                    raise wrong(path, key, "keys must be texts")
                yield path, key
                rows.append((f"{path}.{key}".lstrip("."), one, level + 1))
        elif isinstance(value, (list, tuple)):
            rows += [(path, one, level + 1) for one in value]
        else:
            yield path, value


def _differs(value: Any) -> str:
    """What is wrong with a key or a value that is no container; empty for nothing."""
    if isinstance(value, float) and not isfinite(value):
        return "must be finite"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "must be a number of 64 bits"
    if isinstance(value, str) and not value.isascii() and not is_utf8(value):
        return "is not UTF-8 text"
    return "" if value is None or isinstance(value, (bool, int, float, str)) else "must be a number or a text"
