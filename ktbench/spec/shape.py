"""Shape of a Mixture-of-Experts model, read from the facts of its Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ktbench.spec.config_facts import Count, count_in, require_counted, require_plain, wrong

# Upper bounds are several times what any released model has: a larger number is a mistake, and would take minutes or
# all memory before it is noticed.
_MOST_LAYERS, _MOST_EXPERTS, _MOST_WIDTH, _MOST_TOKENS, _MOST_HEADS = 512, 2**14, 2**20, 2**24, 2**14
_NO_MOE = "not a Mixture-of-Experts model"
# Families spell the same fact differently in their configuration files; the first key present wins.
_LAYERS = Count(("num_hidden_layers",), _MOST_LAYERS)
_HIDDEN = Count(("hidden_size",), _MOST_WIDTH)
_VOCAB = Count(("vocab_size",), _MOST_TOKENS)
_EXPERTS = Count(
    ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "moe_num_primary_experts"),
    _MOST_EXPERTS,
    tells=_NO_MOE,
)
_TOP_K = Count(
    (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_topk",
        "moe_k",
        "moe_num_active_primary_experts",
    ),
    _MOST_EXPERTS,
    tells=_NO_MOE,
)
_EXPERT_FFN = Count(("moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size"), _MOST_WIDTH, tells=_NO_MOE)
_DENSE_FFN = Count(
    ("dense_intermediate_size", "prefix_dense_intermediate_size", "intermediate_size_mlp", "intermediate_size"),
    _MOST_WIDTH,
)
_FIRST_DENSE = Count(("first_k_dense_replace", "num_dense_layers"), _MOST_LAYERS, least=0)
_SHARED_FFN = Count(
    ("shared_expert_intermediate_size", "shared_experts_intermediate_size", "shared_intermediate_size"),
    _MOST_WIDTH,
    least=0,
)
_SHARED = Count(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), _MOST_EXPERTS, least=0)
_HEADS = Count(("num_attention_heads",), _MOST_HEADS)
_KV_HEADS = Count(("num_key_value_heads",), _MOST_HEADS)
_HEAD_DIM = Count(("head_dim",), _MOST_WIDTH)
_POSITIONS, _UNLIMITED = Count(("max_position_embeddings",), _MOST_TOKENS), 2**20
# Groups of experts of which a token takes its own from a few.
_GROUPS, _GROUPS_TAKEN = Count(("n_group",), _MOST_EXPERTS), Count(("topk_group",), _MOST_EXPERTS)
# These have a dense part beside the experts of every layer and no key that says so.
_DENSE_BESIDE_EXPERTS = ("gemma4_text", "hunyuan_v1_moe")
_EXPERT_BIASES = ("gpt_oss",)
# These have one shared expert in each layer with routed ones, as wide as those, and no key that says so.
_ONE_SHARED = ("llama4_text",)
# Their values are of another width than their keys, and layers that attend to a window have twice the heads of keys.
_WIDE_NEAR = ("mimo_v2_flash",)
_VALUE_DIM, _WHOLE_EVERY = Count(("v_head_dim",), _MOST_WIDTH), 6  # layers, where no layer_types say which
# These have a gated linear attention in most layers and a gated grouped-query attention in the others.
_GATED_LINEAR = ("qwen3_next",)
# One key, which is the value as well, of low rank in queries and output; most layers compress what they attend to.
_COMPRESSED = ("deepseek_v4",)
_TOKENS_COMPRESSED = {4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
_NESTED = "text_config"
# Released with code of their own, which is never run, around an architecture that Transformers has.
_SAME_AS = {"kimi_k2": "deepseek_v3"}
_TEXT_ONLY = ("kimi_k25",)  # of which Transformers has but the language model


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraNumbers:
    """How many numbers LoRA trains: in the attention of a layer, and in one routed expert."""

    attention: int
    expert: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEShape:
    """Sizes that decide work and memory. Widths are in elements; `shared_ffn` is 0 without a shared expert.

    `expert_biases` counts the biases of one routed expert, 0 where its projections have none; `latent_params` those of
    `attention_params` that expand a layer's latents to keys and values, 0 where attention has none. A token leaves
    `cached_numbers` in the cache of a layer. A sequence has up to `positions`: more than anyone asks for where the
    configuration does not limit them.
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
    cached_numbers: int
    positions: int
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

    def lora_numbers(self, rank: int, *, attention: bool, experts: bool) -> LoraNumbers:
        """Of factors of a rank on the attention, on the experts, or both: the inputs and outputs of their matrices.

        Of latent attention about: it is counted as four matrices with the hidden width on one side each.
        """
        of_attention = 4 * self.hidden + self.attention_params // self.hidden
        of_expert = 2 * self.hidden + 3 * self.expert_ffn  # gate and up are one matrix
        return LoraNumbers(attention=rank * of_attention * attention, expert=rank * of_expert * experts)

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

    Every configuration goes through here, wherever it comes from. Attention other than grouped-query, latent, gated
    linear and compressed attention (sparse) counts as grouped-query with the same heads. Raises ValueError in one line
    for what is not plain content (see `require_plain`), naming the keys that are missing where the configuration does
    not tell a shape, a key that decides a size in a way that is not counted here (see `require_counted`), and the key
    whose value no model can have: of another type, out of bounds, a top-k of more than all experts, groups that do not
    divide.
    """
    require_plain(config)
    facts = text_config(config)
    ffn, hidden, is_moe = count_in(facts, _EXPERT_FFN), count_in(facts, _HIDDEN), _has_experts(facts)
    shape = MoEShape(
        hidden=hidden,
        expert_ffn=ffn,
        experts=count_in(facts, _EXPERTS),
        top_k=count_in(facts, _TOP_K),
        layers=len(is_moe),
        dense_layers=is_moe.count(False),
        dense_ffn=count_in(facts, _DENSE_FFN, ffn),
        shared_ffn=_shared_ffn(facts, ffn),
        attention_params=_attention_params(facts, len(is_moe)),
        vocab=count_in(facts, _VOCAB),
        tied_head=bool(facts.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        cached_numbers=_cached_numbers(facts),
        positions=count_in(facts, _POSITIONS, _UNLIMITED),
        expert_biases=2 * ffn + hidden if facts.get("model_type") in _EXPERT_BIASES else 0,
        latent_params=_latent_params(facts) if facts.get("kv_lora_rank") else 0,
    )
    _require_routing(facts, shape)
    require_counted(facts)
    return shape


def _require_routing(facts: Mapping[str, Any], shape: MoEShape) -> None:
    """Raise ValueError where a token cannot get so many experts."""
    if shape.top_k > shape.experts:
        key = next(key for key in _TOP_K.keys if facts.get(key) is not None)
        raise wrong(key, shape.top_k, f"a token gets at most all {shape.experts} experts")
    groups, taken = count_in(facts, _GROUPS, 1), count_in(facts, _GROUPS_TAKEN, 1)
    if groups == 1:
        return
    if shape.experts % groups:
        raise wrong("n_group", groups, f"must divide {shape.experts} experts")
    if taken > groups or shape.top_k > taken * (shape.experts // groups):
        found = f"{shape.top_k} of {shape.experts} experts in {groups} groups"
        raise wrong("topk_group", taken, f"a token gets {found} and cannot take them from so many")


def told_tied(config: Mapping[str, Any]) -> bool | None:
    """Whether a configuration says that the output head is the embedding; None where it leaves that to its family."""
    told = text_config(config).get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return None if told is None else bool(told)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: all of it, but of a multimodal model its `text_config`.

    Raises ValueError for one that is no mapping.
    """
    nested = config.get(_NESTED) or config
    if not isinstance(nested, Mapping):
        raise wrong(_NESTED, nested, "must be an object")
    return nested


_BY_LENGTH = ("dynamic", "longrope", "su")


def length_rotation(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """A type of rotary embedding that follows the longest sequence, and how many positions it is the same for.

    None where frequencies do not depend on the length: one table of them serves every step.
    """
    facts = text_config(config)
    given = [facts.get("rope_parameters"), facts.get("rope_scaling")]
    held = [one for one in given if isinstance(one, Mapping)]
    for rope in [*held, *(inner for one in held for inner in one.values() if isinstance(inner, Mapping))]:
        kind = rope.get("rope_type", rope.get("type"))
        if kind in _BY_LENGTH:
            keys = ("original_max_position_embeddings", "max_position_embeddings")
            lengths = [one[key] for one in (rope, facts) for key in keys if type(one.get(key)) is int]
            return str(kind), min(lengths, default=0)
    return None


def known_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A released configuration under the `model_type` by which Transformers knows its architecture.

    How its weights are quantised is left to who reads them. Raises ValueError as `moe_shape`.
    """
    require_plain(config)
    facts = dict(text_config(config) if config["model_type"] in _TEXT_ONLY else config)
    facts.pop("quantization_config", None)
    if same := _SAME_AS.get(str(facts.get("model_type"))):
        facts.pop("auto_map", None)
        facts["model_type"] = same
    moe_shape(facts)
    return facts


def sliced_config(config: Mapping[str, Any], full_layers: int, layers: int, vocab: int) -> dict[str, Any]:
    """The first layers of a configuration of `full_layers`, with another vocabulary.

    Facts kept per layer (attention kinds, say) are lists as long as the model is deep: they are cut with it.
    """
    if config.get(_NESTED) is not None:
        return dict(config) | {_NESTED: sliced_config(config[_NESTED], full_layers, layers, vocab)}
    cut = {
        key: value[:layers] if isinstance(value, list) and len(value) == full_layers else value
        for key, value in config.items()
    }
    return cut | {"num_hidden_layers": layers, "vocab_size": vocab}


def with_experts(config: Mapping[str, Any], experts: int) -> dict[str, Any]:
    """The configuration with so many routed experts, under the key that its family counts them by.

    Groups of experts that do not go with the number are left out.
    """
    if config.get(_NESTED):
        return dict(config) | {_NESTED: with_experts(config[_NESTED], experts)}
    fewer = dict(config) | {next(key for key in _EXPERTS.keys if config.get(key) is not None): experts}
    try:
        moe_shape(fewer)
    except ValueError:
        return fewer | {key: 1 for count in (_GROUPS, _GROUPS_TAKEN) for key in count.keys if key in config}
    return fewer


def _has_experts(config: Mapping[str, Any]) -> list[bool]:
    """For each layer whether it has routed experts, by whichever of its family's rules excludes it or none does."""
    layers = count_in(config, _LAYERS)
    if kinds := _listed(config, "mlp_layer_types", str):
        return [kind != "dense" for kind in kinds[:layers]]
    first, named = count_in(config, _FIRST_DENSE, 0), _listed(config, "mlp_only_layers", int)
    rules = (_qwen(config), _jamba(config), _ernie(config, layers), _llama(config), _by_frequency(config, layers))
    return [layer >= first and layer not in named and all(rule(layer) for rule in rules) for layer in range(layers)]


def _listed(config: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """A list of a configuration, empty without one. Raises ValueError for what is no list of `kind`."""
    value = config.get(key) or []
    if not isinstance(value, list) or not all(type(one) is kind for one in value):
        raise wrong(key, value, f"must be a list of {kind.__name__}")
    return value


_Rule = Callable[[int], bool]  # for the number of a layer, counted from 0


def _qwen(config: Mapping[str, Any]) -> _Rule:
    step = count_in(config, Count(("decoder_sparse_step",), _MOST_LAYERS), 1)
    return lambda layer: (layer + 1) % step == 0


def _jamba(config: Mapping[str, Any]) -> _Rule:
    period = count_in(config, Count(("expert_layer_period",), _MOST_LAYERS), 1)
    offset = count_in(config, Count(("expert_layer_offset",), _MOST_LAYERS, least=0), 0)
    return lambda layer: layer % period == offset


def _ernie(config: Mapping[str, Any], layers: int) -> _Rule:
    """Its last index may be -1: the last layer."""
    last = count_in(config, Count(("moe_layer_end_index",), _MOST_LAYERS, least=-1), -1) % layers
    first = count_in(config, Count(("moe_layer_start_index",), _MOST_LAYERS, least=0), 0)
    interval = count_in(config, Count(("moe_layer_interval",), _MOST_LAYERS), 1)
    return lambda layer: (layer + 1) % interval == 0 and first <= layer <= last


def _llama(config: Mapping[str, Any]) -> _Rule:
    if named := _listed(config, "moe_layers", int):
        return lambda layer: layer in named
    step = count_in(config, Count(("interleave_moe_layer_step",), _MOST_LAYERS), 1)
    return lambda layer: (layer + 1) % step == 0


def _by_frequency(config: Mapping[str, Any], layers: int) -> _Rule:
    """Of MiMo, a 0 or 1 for each layer. Transformers knows no other number than 1 in its place."""
    if (found := config.get("moe_layer_freq")) in (None, 1):
        return lambda layer: True
    if not isinstance(found, list) or len(found) < layers or any(one not in (0, 1) for one in found):
        raise wrong("moe_layer_freq", found, f"must be 1, or a list of 0 or 1 for each of {layers} layers")
    return lambda layer: bool(found[layer])


def _shared_ffn(config: Mapping[str, Any], ffn: int) -> int:
    if config.get("model_type") in _DENSE_BESIDE_EXPERTS:
        return count_in(config, _DENSE_FFN)
    if config.get("model_type") in _ONE_SHARED:
        return ffn
    return count_in(config, _SHARED_FFN, 0) or count_in(config, _SHARED, 0) * ffn


def _attention_params(config: Mapping[str, Any], layers: int) -> int:
    """Weights of the attention of a layer; where layers differ their mean."""
    if config.get("kv_lora_rank"):
        return _mla_params(config)
    if config.get("model_type") in _COMPRESSED:
        return _compressed_params(config, layers)
    if config.get("model_type") not in _GATED_LINEAR:
        return _gqa_params(config)
    gated = _gqa_params(config) + count_in(config, _HIDDEN) * count_in(config, _HEADS) * count_in(config, _HEAD_DIM)
    whole = layers // count_in(config, Count(("full_attention_interval",), _MOST_LAYERS), 4)
    return (whole * gated + (layers - whole) * _gated_linear_params(config)) // layers


def _widths(config: Mapping[str, Any], *keys: str) -> Iterator[int]:
    """Those that a kind of attention needs."""
    return (count_in(config, Count((key,), _MOST_WIDTH)) for key in keys)


def _gated_linear_params(config: Mapping[str, Any]) -> int:
    """Gated delta net: query, key, value, gate, decay and output projection; its short convolution is left out."""
    key_heads, key_head, value_heads, value_head = _widths(
        config, "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"
    )
    keys, values = key_heads * key_head, value_heads * value_head
    return count_in(config, _HIDDEN) * (2 * keys + 3 * values + 2 * value_heads)


def _compressed_params(config: Mapping[str, Any], layers: int) -> int:
    """DeepSeek-V4: query, key and output of all layers, and the mean of what compresses; norms and biases left out."""
    hidden, heads, head = (count_in(config, one) for one in (_HIDDEN, _HEADS, _HEAD_DIM))
    rank, out, groups = _widths(config, "q_lora_rank", "o_lora_rank", "o_groups")
    index_heads, index_head = _widths(config, "index_n_heads", "index_head_dim")
    whole = rank * (hidden + heads * head) + hidden * head + out * (heads * head + groups * hidden)
    sparse = 4 * hidden * (head + index_head) + index_heads * (rank * index_head + hidden)
    kinds = _compressing(config, layers)
    extra = {_TOKENS_COMPRESSED[4]: sparse, _TOKENS_COMPRESSED[128]: 2 * hidden * head}
    return whole + sum(extra.get(kind, 0) for kind in kinds) // layers


def _compressing(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer; without a word two that compress heavily, then sparse and heavy ones in turns."""
    if ratios := _listed(config, "compress_ratios", int):
        return [_TOKENS_COMPRESSED.get(ratio, "") for ratio in ratios[:layers]]
    sparse, heavy = _TOKENS_COMPRESSED.values()
    usual = [heavy if layer < 2 or layer % 2 else sparse for layer in range(layers)]
    return (_listed(config, "layer_types", str) or usual)[:layers]


def attention_heads(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Heads of the queries, heads of the keys, and the width of a head, of grouped-query attention.

    Raises ValueError where heads do not share keys evenly.
    """
    hidden, heads = count_in(config, _HIDDEN), count_in(config, _HEADS)
    kv_heads = count_in(config, _KV_HEADS, heads)
    if heads % kv_heads:
        raise wrong("num_key_value_heads", kv_heads, f"must divide {heads} heads")
    if not config.get("head_dim") and heads > hidden:
        raise wrong("num_attention_heads", heads, f"without a head_dim they share a hidden_size of {hidden}")
    return heads, kv_heads, count_in(config, _HEAD_DIM, hidden // heads)


def _cached_numbers(config: Mapping[str, Any]) -> int:
    """Keys and values of all heads, or a latent and a rotated key."""
    if config.get("kv_lora_rank"):
        at = latent_widths(config)
        return at.rank + at.rope
    _, kv_heads, head = attention_heads(config)
    value = count_in(config, _VALUE_DIM, head) if config.get("model_type") in _WIDE_NEAR else head
    return kv_heads * (head + value)


def cached_in_all(config: Mapping[str, Any], layers: int) -> int:
    """Numbers that a token leaves in the cache of so many layers. Raises ValueError as `moe_shape`."""
    facts = text_config(config)
    if facts.get("model_type") not in _WIDE_NEAR:
        return layers * _cached_numbers(facts)
    usual = [
        "full_attention" if at == 0 or not (at + 1) % _WHOLE_EVERY else "sliding_attention" for at in range(layers)
    ]
    kinds = (_listed(facts, "layer_types", str) or usual)[:layers]
    return (layers + kinds.count("sliding_attention")) * _cached_numbers(facts)


def _gqa_params(config: Mapping[str, Any]) -> int:
    """Grouped-query attention: query, key, value and output projection."""
    heads, kv_heads, head = attention_heads(config)
    return count_in(config, _HIDDEN) * head * (2 * heads + 2 * kv_heads)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentWidths:
    """Heads and widths of multi-head latent attention (DeepSeek-V2, section 2.1): of a head's query and key without and
    with rotation, of its value, and of a token's latent.
    """

    heads: int
    nope: int
    rope: int
    value: int
    rank: int


def latent_widths(config: Mapping[str, Any]) -> LatentWidths:
    """Those of a configuration with a `kv_lora_rank`: none is `head_dim`, whatever releases mean by it there."""
    nope, rope, value, rank = _widths(config, "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    count_in(config, _HEAD_DIM, rope)
    return LatentWidths(heads=count_in(config, _HEADS), nope=nope, rope=rope, value=value, rank=rank)


def _mla_params(config: Mapping[str, Any]) -> int:
    """Low-rank query and key-value projections, then output."""
    hidden, at = count_in(config, _HIDDEN), latent_widths(config)
    q_width = at.heads * (at.nope + at.rope)
    low_rank = config.get("q_lora_rank") is not None
    query = sum(_widths(config, "q_lora_rank")) * (hidden + q_width) if low_rank else hidden * q_width
    return query + hidden * (at.rank + at.rope) + _latent_params(config) + at.heads * at.value * hidden


def _latent_params(config: Mapping[str, Any]) -> int:
    """The up-projection of a latent to the keys, without rotation, and values of all heads."""
    at = latent_widths(config)
    return at.rank * at.heads * (at.nope + at.value)
