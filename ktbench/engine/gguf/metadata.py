"""How the facts of a Hugging Face configuration are written as GGUF metadata, and read from it.

Configurations are complete, as Transformers writes them. Fields are named without the architecture that begins their
keys in a file: `block_count` is `qwen3moe.block_count` there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

_SCALED = ("linear", "yarn")
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # the only ones of llama.cpp, whatever a file says
_BASE = 10000.0
# llama.cpp divides it out again, for the sake of old files.
_LOG_MULTIPLIER = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """`rope_parameters` of Transformers 5.

    `latent` attention rotates a part of its own and scales its scores by YaRN, too; where `partial`, only a share of
    every head is rotated. `truncate` is what a file does not say of YaRN (None: the default).
    """

    latent: bool = False
    partial: bool = False
    truncate: bool | None = None

    def differs(self, config: Config) -> str:
        """Scaling that llama.cpp lacks, or does otherwise."""
        rope = config["rope_parameters"]
        kind = rope["rope_type"]
        if kind not in ("default", *_SCALED) or (self.latent and kind == "linear"):
            return f"rope_type={kind}, llama.cpp knows default and {'yarn' if self.latent else 'linear, yarn'}"
        if kind != "yarn":
            return ""
        if rope.get("attention_factor") is not None:
            return f"attention_factor={rope['attention_factor']}, llama.cpp derives it from factor"
        if wrong := [key for key, beta in _BETAS.items() if (rope.get(key) or beta) != beta]:
            return f"{wrong[0]}={rope[wrong[0]]}, llama.cpp knows {_BETAS[wrong[0]]}"
        all_dim = rope.get("mscale_all_dim")
        if rope.get("mscale") != all_dim or self.latent != bool(all_dim):
            return f"mscale={rope.get('mscale')} and mscale_all_dim={all_dim}, llama.cpp needs equal ones for MLA alone"
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        rope = config["rope_parameters"]
        fields: dict[str, Value] = {
            "rope.freq_base": float(rope["rope_theta"]),
            "rope.dimension_count": self._width(config),
        }
        if rope["rope_type"] not in _SCALED:
            return fields
        fields |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        if rope["rope_type"] == "yarn":
            fields["rope.scaling.original_context_length"] = int(rope["original_max_position_embeddings"])
            fields |= {f"rope.scaling.yarn_{key}": float(rope.get(key) or beta) for key, beta in _BETAS.items()}
            if self.latent:
                fields["rope.scaling.yarn_log_multiplier"] = _LOG_MULTIPLIER * rope["mscale_all_dim"]
        return fields

    def _width(self, config: Config) -> int:
        if self.latent:
            return int(config["qk_rope_head_dim"])
        return int(head_width(config) * (config["rope_parameters"].get("partial_rotary_factor") or 1.0))

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        kind = fields.get("rope.scaling.type", "default")
        kind = kind if kind in _SCALED else "default"
        rope: dict[str, Any] = {"rope_type": kind, "rope_theta": short(fields.get("rope.freq_base", _BASE))}
        if self.partial:
            rope["partial_rotary_factor"] = fields["rope.dimension_count"] / fields["attention.key_length"]
        if kind in _SCALED:
            rope["factor"] = short(fields["rope.scaling.factor"])
        if kind == "yarn":
            rope |= self._yarn(fields)
        return {"rope_parameters": rope}

    def _yarn(self, fields: Fields) -> dict[str, Any]:
        length = fields.get("rope.scaling.original_context_length", fields["context_length"])
        yarn: dict[str, Any] = {"original_max_position_embeddings": int(length)}
        yarn |= {key: short(fields.get(f"rope.scaling.yarn_{key}", beta)) for key, beta in _BETAS.items()}
        if self.latent:
            scale = float(f"{fields['rope.scaling.yarn_log_multiplier'] / _LOG_MULTIPLIER:.6g}")
            yarn |= {"mscale": scale, "mscale_all_dim": scale}
        if self.truncate is not None:
            yarn["truncate"] = self.truncate
        return yarn


class LatentWidths:
    """Widths of latent attention. llama.cpp runs it as one key-value head, [latent, rotated part] wide."""

    def differs(self, config: Config) -> str:
        """Slices that llama.cpp takes for DeepSeek-V2-Lite by their depth, which has no query of low rank."""
        layers, vocab = config["num_hidden_layers"], config["vocab_size"]
        is_lite = layers in (26, 27) or (layers == 48 and vocab == 128256)
        if not is_lite or config.get("q_lora_rank") is None:
            return ""
        return f"num_hidden_layers={layers}, llama.cpp takes it for DeepSeek-V2-Lite; allowed are other depths"

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        rank, rotated = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
        return {
            "attention.head_count_kv": 1,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": int(config["qk_nope_head_dim"]) + rotated,
            "attention.value_length_mla": int(config["v_head_dim"]),
        }

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`. Files from before `attn_k_b` hold a head's own widths as the plain ones."""
        rotated = int(fields["rope.dimension_count"])
        key = fields.get("attention.key_length_mla", fields["attention.key_length"])
        return {
            "num_key_value_heads": int(fields["attention.head_count"]),
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": int(key) - rotated,
            "v_head_dim": int(fields.get("attention.value_length_mla", fields["attention.value_length"])),
        }


_SOFTMAX, _SIGMOID = 1, 2  # LLAMA_EXPERT_GATING_FUNC_TYPE


class Groups:
    """Expert groups of which a token selects some. A single group, or all of them, selects nothing and is no field."""

    def differs(self, config: Config) -> str:
        """Never: a group is scored by its two best experts in both."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        groups, used = config.get("n_group") or 1, config.get("topk_group") or 1
        return {"expert_group_count": groups, "expert_group_used_count": used} if used < groups else {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {
            "n_group": int(fields.get("expert_group_count", 1)) or 1,
            "topk_group": int(fields.get("expert_group_used_count", 1)) or 1,
        }


class GreedyGroups(Groups):
    """Groups that are scored by their best expert, for which llama.cpp has no name."""

    def differs(self, config: Config) -> str:
        """Where groups are limited."""
        if config.get("topk_method") != "group_limited_greedy" or not super().write(config):
            return ""
        return "topk_method=group_limited_greedy, llama.cpp scores a group by its two best experts, the model by one"

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`. What llama.cpp does with groups is not what they mean, but what they mean is this."""
        facts = super().read(fields, tensors)
        return facts | {"topk_method": "greedy" if facts["n_group"] == 1 else "group_limited_greedy"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gating:
    """The function that makes scores of what a router says."""

    sigmoid: bool = False

    def differs(self, config: Config) -> str:
        """Never: a family has one."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"expert_gating_func": _SIGMOID if self.sigmoid else _SOFTMAX}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Nothing: the family says it."""
        return {}


def is_sigmoid(fields: Fields) -> bool:
    """Whether scores are sigmoids; files that do not say so are older than such models."""
    return int(fields.get("expert_gating_func", _SOFTMAX)) == _SIGMOID


Config = Mapping[str, Any]
Value = int | float | bool | str
Fields = Mapping[str, Any]


class Entry(Protocol):
    """Some facts of a configuration and the fields that carry them."""

    def differs(self, config: Config) -> str:
        """Why llama.cpp would compute something else than the model does; empty where it computes the same."""
        ...

    def write(self, config: Config) -> dict[str, Value]:
        """Fields of a configuration."""
        ...

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Facts of a file with these fields and names of tensors."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A number, or a yes or no, that is a field of its own. Reading gives it under the first of `keys`.

    `absent` is what a file without the field means (None: it has to have it), `none` what is written where the
    configuration has none (None: no field).
    """

    keys: tuple[str, ...]
    field: str
    kind: Literal["int", "float", "bool"] = "int"
    absent: Value | None = None
    none: Value | None = None

    def differs(self, config: Config) -> str:
        """Never: the field carries it."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        value = next((config[key] for key in self.keys if config.get(key) is not None), self.none)
        return {} if value is None else {self.field: _KINDS[self.kind](value)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        value = fields[self.field] if self.absent is None else fields.get(self.field, self.absent)
        read = short(value) if self.kind == "float" else _KINDS[self.kind](value)
        return {self.keys[0]: None if read == self.none else read}


_KINDS: Mapping[str, type[int | float | bool]] = {"int": int, "float": float, "bool": bool}


def short(value: float) -> float:
    """The shortest decimal number that a float32 stands for: 1e-06 for 9.99999997e-07."""
    return float(f"{float(value):.7g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A fact that llama.cpp takes for granted in this architecture, so no field carries it."""

    key: str
    value: Any

    def differs(self, config: Config) -> str:
        """Where the configuration says otherwise."""
        said = config.get(self.key)
        is_same = said is None or said == self.value
        return "" if is_same else f"{self.key}={said}, llama.cpp knows {self.value}"

    def write(self, config: Config) -> dict[str, Value]:
        """Nothing."""
        return {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {self.key: self.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A yes or no that a file answers by holding a tensor, or by not holding it where `inverted`."""

    key: str
    tensor: str
    inverted: bool = False

    def differs(self, config: Config) -> str:
        """Never: llama.cpp looks for the tensor."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """Nothing."""
        return {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {self.key: (self.tensor in tensors) != self.inverted}


class Depth:
    """Layers. A file may count those that predict further tokens, which no network of Transformers has."""

    def differs(self, config: Config) -> str:
        """Never."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"block_count": int(config["num_hidden_layers"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        return {"num_hidden_layers": int(fields["block_count"]) - int(fields.get("nextn_predict_layers", 0))}


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadWidth:
    """Width of attention heads; where `whole`, heads have to be as wide together as the hidden state."""

    whole: bool = False

    def differs(self, config: Config) -> str:
        """Heads that llama.cpp would take for wider or narrower ones."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        if not self.whole or head_width(config) * heads == hidden:
            return ""
        return f"head_dim={head_width(config)}, llama.cpp knows hidden_size / num_attention_heads = {hidden // heads}"

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        width = config.get("head_dim")
        return {} if width is None else {"attention.key_length": int(width), "attention.value_length": int(width)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        width = fields.get("attention.key_length")
        return {} if width is None else {"head_dim": int(width)}


def head_width(config: Config) -> int:
    """Width of one attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


class Window:
    """Layers that look at a window and layers that look at everything, taking turns."""

    def differs(self, config: Config) -> str:
        """Layers in another order."""
        kinds = config.get("layer_types")
        is_same = kinds is None or list(kinds) == _in_turns(len(kinds))
        return "" if is_same else "layer_types in another order than sliding_attention, full_attention in turns"

    def write(self, config: Config) -> dict[str, Value]:
        """See `Entry`."""
        return {"attention.sliding_window": int(config["sliding_window"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """See `Entry`."""
        kinds = _in_turns(int(fields["block_count"]))
        return {"sliding_window": int(fields["attention.sliding_window"]), "layer_types": kinds}


def _in_turns(layers: int) -> list[str]:
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
