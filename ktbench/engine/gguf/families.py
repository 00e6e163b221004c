"""The families that llama.cpp knows: their configurations as metadata and their tensors' names, in both directions.

Source of the facts: llama.cpp's conversion scripts and what its models load and compute (src/models), as of
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ktbench.engine.gguf.metadata import (
    Depth,
    Entry,
    Fact,
    Fixed,
    Gating,
    GreedyGroups,
    Groups,
    HeadWidth,
    Held,
    LatentWidths,
    Rope,
    Value,
    Window,
    is_sigmoid,
)
from ktbench.engine.gguf.names import (
    CORRECTED,
    DENSE,
    GATED,
    HEAD_NORMS,
    HEADS,
    LATE_NORMS,
    LATENT,
    NORMS,
    ROUTER,
    SHARED,
    WHOLE,
    Change,
    Config,
    LatentHeads,
    RotaryRows,
    Row,
    Same,
    WeightClass,
    kind_of,
)

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


if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURE = "general.architecture"
OUR_CONFIG = "ktbench.config"
OUR_WEIGHTS = "ktbench.weights"

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """Where a tensor of the network lies in a file: `names` of what `change` splits it into, as numbers of `kind`."""

    names: tuple[str, ...]
    kind: WeightClass
    change: Change

    def split(self, tensor: Tensor, config: Config) -> dict[str, Tensor]:
        """What the file holds, by name."""
        return dict(zip(self.names, self.change.split(tensor, config), strict=True))

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The network's tensor of those of the file, in the order of `names`."""
        return self.change.join(parts, config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model type of Transformers and the architecture that llama.cpp runs it as.

    `modules` gives for what is in a decoder layer the names in the file; keys are modules, whose `weight` and `bias`
    keep these names, or tensors of other names. `sigmoid` tells apart two families of one architecture by how their
    routers score. `remark` is what llama.cpp computes slightly otherwise.
    """

    model_type: str
    architecture: str
    entries: tuple[Entry, ...]
    modules: Mapping[str, Sequence[str]]
    changes: Mapping[str, Change] = field(default_factory=dict)
    sigmoid: bool | None = None
    remark: str = ""

    def require_same(self, config: Config) -> None:
        """Raise ValueError where llama.cpp would compute something else, naming what."""
        for entry in self.entries:
            if why := entry.differs(config):
                raise ValueError(f"{self.model_type} as GGUF: {why}")

    def metadata(self, config: Config) -> dict[str, Value]:
        """Metadata of a complete configuration, by whole keys. Raises ValueError as `require_same`."""
        self.require_same(config)
        fields = {name: value for entry in self.entries for name, value in entry.write(config).items()}
        return {f"{self.architecture}.{name}": value for name, value in fields.items()}

    def config(self, metadata: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
        """The configuration of a file: its metadata by whole keys as plain values, and the names of its tensors.

        What no file says (dropout, how weights are initialised, special tokens) is left to the family's defaults.
        Raises ValueError naming a field that is missing.
        """
        fields = _fields(metadata, self.architecture)
        facts: dict[str, Any] = {"model_type": self.model_type}
        try:
            for entry in self.entries:
                facts |= entry.read(fields, tensors)
        except KeyError as missing:
            raise ValueError(f"GGUF metadata has no {self.architecture}.{missing.args[0]}") from None
        return facts

    def mapped(self, name: str) -> Mapped:
        """Where the network's tensor `name` lies in a file. Raises ValueError where llama.cpp has none such.

        Routed experts go by `expert_names`.
        """
        found = _LAYER.fullmatch(name)
        inner, modules, prefix = (found[2], self.modules, f"blk.{found[1]}.") if found else (name, WHOLE, "")
        module, _, last = inner.rpartition(".")
        if inner in modules:
            names, module = modules[inner], inner
        elif module in modules and last in ("weight", "bias"):
            names = [f"{one}.{last}" for one in modules[module]]
        else:
            raise ValueError(f"{self.model_type} as GGUF: llama.cpp has no tensor for {name}")
        change = self.changes.get(module, Same())
        return Mapped(names=tuple(prefix + one for one in names), kind=kind_of(module, last), change=change)


def _fields(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    start = f"{architecture}."
    fields = {key.removeprefix(start): value for key, value in metadata.items() if key.startswith(start)}
    if "vocab_size" not in fields and "tokenizer.ggml.tokens" in metadata:
        fields["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
    return fields


FAMILIES: tuple[Family, ...] = (
    Family(
        model_type="qwen3_moe",
        architecture="qwen3moe",
        entries=COMMON + QWEN3_MOE,
        modules=NORMS | HEADS | HEAD_NORMS | ROUTER,
    ),
    Family(
        model_type="qwen2_moe",
        architecture="qwen2moe",
        entries=COMMON + QWEN2_MOE,
        modules=NORMS | HEADS | ROUTER | GATED | {"mlp.shared_expert_gate": ["ffn_gate_inp_shexp"]},
        changes={"mlp.shared_expert_gate": Row()},
    ),
    Family(
        model_type="mixtral",
        architecture="llama",
        entries=COMMON + MIXTRAL,
        modules=NORMS | HEADS | ROUTER,
        changes={
            "self_attn.q_proj": RotaryRows("num_attention_heads"),
            "self_attn.k_proj": RotaryRows("num_key_value_heads"),
        },
    ),
    Family(
        model_type="deepseek_v2",
        architecture="deepseek2",
        entries=COMMON + DEEPSEEK_V2,
        modules=NORMS | LATENT | ROUTER | DENSE | SHARED,
        changes={"self_attn.kv_b_proj": LatentHeads()},
        sigmoid=False,
    ),
    Family(
        model_type="deepseek_v3",
        architecture="deepseek2",
        entries=COMMON + DEEPSEEK_V3,
        modules=NORMS | LATENT | CORRECTED | DENSE | SHARED,
        changes={"self_attn.kv_b_proj": LatentHeads()},
        sigmoid=True,
    ),
    Family(
        model_type="glm4_moe",
        architecture="glm4moe",
        entries=COMMON + GLM4_MOE,
        modules=LATE_NORMS | HEADS | HEAD_NORMS | CORRECTED | DENSE | SHARED,
    ),
    Family(
        model_type="gpt_oss",
        architecture="gpt-oss",
        entries=COMMON + GPT_OSS,
        modules=LATE_NORMS | HEADS | {"mlp.router": ["ffn_gate_inp"], "self_attn.sinks": ["attn_sinks.weight"]},
        remark="llama.cpp rounds the range over which YaRN blends frequencies, the model does not",
    ),
)
_BY_TYPE: Mapping[str, Family] = {family.model_type: family for family in FAMILIES}


def family_of(config: Config) -> Family:
    """The family of a Hugging Face configuration. Raises ValueError naming the families that there are."""
    kind = str(config.get("model_type"))
    if kind not in _BY_TYPE:
        raise ValueError(f"model_type={kind} as GGUF: not written or read here; allowed are {', '.join(_BY_TYPE)}")
    return _BY_TYPE[kind]


def family_in(metadata: Mapping[str, Any]) -> Family:
    """The family of a file by its metadata. Raises ValueError naming the architectures that there are."""
    name = metadata.get(ARCHITECTURE)
    sigmoid = is_sigmoid(_fields(metadata, str(name)))
    for family in FAMILIES:
        if family.architecture == name and family.sigmoid in (None, sigmoid):
            return family
    allowed = ", ".join(dict.fromkeys(family.architecture for family in FAMILIES))
    raise ValueError(f"GGUF of architecture {name}: not read here; allowed are {allowed}")
