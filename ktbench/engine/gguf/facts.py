"""Facts of Hugging Face configurations as GGUF metadata, in both directions; `metadata.py` has those of each family.

Configurations are complete, as Transformers writes them. Fields are named without the architecture that begins their
keys in a file: `block_count` is `qwen3moe.block_count` there. Source of the facts: llama.cpp's conversion scripts and
what its models load and compute (src/models), as of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]
Value = int | float | bool | str
Fields = Mapping[str, Any]

# Fields that no family of ours computes with, whatever they hold: its norms are root-mean-square norms, for example.
IDLE = frozenset({"attention.layer_norm_epsilon", "rope.scaling.finetuned", "tensor_data_layout"})
# Fields that change nothing where they hold one of these; a family may read them, or allow others (`Told`).
NEUTRAL: Mapping[str, tuple[Value, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_group_scale": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "moe_every_n_layers": (0, 1),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "use_parallel_residual": (False,),
}
SHOWN = 60  # characters of a value in a message
_SOFTMAX, _SIGMOID = 1, 2  # LLAMA_EXPERT_GATING_FUNC_TYPE
_SCALED = ("linear", "yarn")
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # the only ones of llama.cpp, whatever a file holds
_BASE = 10000.0
_INTERVAL = 4  # of layers with full attention, where nothing else is said
_LINEAR, _FULL = "linear_attention", "full_attention"
_RECURRENT = "attention.recurrent_layers"  # a yes or no for each
# llama.cpp divides it out again, for the sake of old files.
_LOG_MULTIPLIER = 0.1
_KINDS: Mapping[str, type[int | float | bool]] = {"int": int, "float": float, "bool": bool}


class Entry:
    """Some facts of a configuration and the metadata fields that carry them."""

    @property
    def fields(self) -> frozenset[str]:
        """All fields that `read` looks at: a file with one that no entry of its family looks at is refused."""
        return frozenset()

    def differs(self, config: Config) -> str:
        """Why llama.cpp would compute something else than the model does; empty where it computes the same."""
        return ""

    def write(self, config: Config) -> dict[str, Value]:
        """Fields of a configuration."""
        return {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Facts of a file with these fields and names of tensors.

        Raises KeyError for a missing field, ValueError for one that asks for another computation than the family's.
        """
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact(Entry):
    """A number, or a yes or no, that is a field of its own. Reading gives it under the first of `keys`.

    `absent` is what a file without the field means (None: the field is required), `none` what is written where the
    configuration has none (None: no field).
    """

    keys: tuple[str, ...]
    field: str
    kind: Literal["int", "float", "bool"] = "int"
    absent: Value | None = None
    none: Value | None = None

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def write(self, config: Config) -> dict[str, Value]:
        value = next((config[key] for key in self.keys if config.get(key) is not None), self.none)
        return {} if value is None else {self.field: _KINDS[self.kind](value)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        value = fields[self.field] if self.absent is None else fields.get(self.field, self.absent)
        if not isinstance(value, int | float):
            kind = type(value).__name__
            raise ValueError(f"{self.field}={str(value)[:SHOWN]!r}: is a {kind}, read is one number for all layers")
        read = short(value) if self.kind == "float" else _KINDS[self.kind](value)
        return {self.keys[0]: None if read == self.none else read}


def short(value: float) -> float:
    """The shortest decimal number that a float32 stands for: 1e-06 for 9.99999997e-07."""
    return float(f"{float(value):.7g}")


@dataclass(frozen=True, slots=True)
class Told(Entry):
    """A field that a file may have though the family's computation is fixed, with the values that mean that."""

    field: str
    values: tuple[Value, ...]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        _require(fields, self.field, *self.values)
        return {}


def _require(fields: Fields, name: str, *values: Value) -> None:
    """Raise ValueError for a field that is there with another value."""
    if name in fields and fields[name] not in values:
        raise ValueError(f"{name}={fields[name]}, this family computes with {' or '.join(map(str, values))}")


@dataclass(frozen=True, slots=True)
class Fixed(Entry):
    """A fact that llama.cpp assumes for the architecture; a file may repeat it in a `field`."""

    key: str
    value: Any
    field: str | None = None

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field} if self.field else ())

    def differs(self, config: Config) -> str:
        found = config.get(self.key)
        return "" if found is None or found == self.value else f"{self.key}={found}, llama.cpp supports {self.value}"

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        if self.field:
            _require(fields, self.field, self.value)
        return {self.key: self.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class HasTensor(Entry):
    """A yes or no that depends on whether a file holds a tensor (`inverted`: no where it does)."""

    key: str
    tensor: str
    inverted: bool = False

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        return {self.key: (self.tensor in tensors) != self.inverted}


class Depth(Entry):
    """Layers. A file may count those that predict further tokens, which no network of Transformers has."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"block_count", "nextn_predict_layers"})

    def write(self, config: Config) -> dict[str, Value]:
        return {"block_count": int(config["num_hidden_layers"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        return {"num_hidden_layers": int(fields["block_count"]) - int(fields.get("nextn_predict_layers", 0))}


DEPTH = Depth()


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadWidth(Entry):
    """Width of attention heads; where `whole`, heads have to be as wide together as the hidden state."""

    whole: bool = False

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"attention.key_length", "attention.value_length"})

    def differs(self, config: Config) -> str:
        width, expected = _head_width(config), config["hidden_size"] // config["num_attention_heads"]
        if not self.whole or width * config["num_attention_heads"] == config["hidden_size"]:
            return ""
        return f"head_dim={width}, llama.cpp supports hidden_size / num_attention_heads = {expected}"

    def write(self, config: Config) -> dict[str, Value]:
        width = config.get("head_dim")
        return {} if width is None else {"attention.key_length": int(width), "attention.value_length": int(width)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        width = fields.get("attention.key_length")
        _require(fields, "attention.value_length", _read_width(fields))
        return {} if width is None else {"head_dim": int(width)}


def _read_width(fields: Fields) -> int:
    """Of the heads of a file; without a field they share the hidden width."""
    return int(fields.get("attention.key_length") or fields["embedding_length"] // fields["attention.head_count"])


def _head_width(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


class Window(Entry):
    """Layers with a sliding window and layers with full attention, alternating."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"attention.sliding_window"})

    def differs(self, config: Config) -> str:
        kinds = config.get("layer_types")
        is_same = kinds is None or list(kinds) == self._alternating(len(kinds))
        return "" if is_same else "layer_types in another order than sliding_attention, full_attention in turns"

    def write(self, config: Config) -> dict[str, Value]:
        return {"attention.sliding_window": int(config["sliding_window"])}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        kinds = self._alternating(int(fields["block_count"]))
        return {"sliding_window": int(fields["attention.sliding_window"]), "layer_types": kinds}

    @staticmethod
    def _alternating(layers: int) -> list[str]:
        return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]


class Interval(Entry):
    """Layers with linear attention, and every so many full attention; 4 where a configuration says nothing else."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"full_attention_interval", _RECURRENT})

    def differs(self, config: Config) -> str:
        kinds = config.get("layer_types")
        is_same = kinds is None or list(kinds) == self._kinds(len(kinds), self._interval(config))
        return "" if is_same else "layer_types in another order than full_attention in every Nth layer alone"

    def write(self, config: Config) -> dict[str, Value]:
        return {"full_attention_interval": self._interval(config)}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        layers = int(DEPTH.read(fields, tensors)["num_hidden_layers"])
        if (recurrent := fields.get(_RECURRENT)) is not None:  # newer files; llama.cpp looks at nothing else there
            if not isinstance(recurrent, list) or len(recurrent) < layers:
                raise ValueError(
                    f"{_RECURRENT}={str(recurrent)[:SHOWN]}: read is a yes or no for each of {layers} layers"
                )
            return {"layer_types": [_LINEAR if one else _FULL for one in recurrent[:layers]]}
        return {"layer_types": self._kinds(layers, int(fields.get("full_attention_interval", _INTERVAL)))}

    @staticmethod
    def _interval(config: Config) -> int:
        kinds = list(config.get("layer_types") or ())
        if not kinds:
            return int(config.get("full_attention_interval") or _INTERVAL)
        return kinds.index(_FULL) + 1 if _FULL in kinds else len(kinds) + 1

    @staticmethod
    def _kinds(layers: int, interval: int) -> list[str]:
        return [_LINEAR if (layer + 1) % interval else _FULL for layer in range(layers)]


class DeltaWidths(Entry):
    """Widths of a gated delta net, named as those of state space models. llama.cpp has one of keys and values."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"ssm.time_step_rank", "ssm.inner_size"})

    def differs(self, config: Config) -> str:
        keys, values = config["linear_key_head_dim"], config["linear_value_head_dim"]
        return (
            "" if keys == values else f"linear_value_head_dim={values}, llama.cpp supports linear_key_head_dim={keys}"
        )

    def write(self, config: Config) -> dict[str, Value]:
        heads, width = int(config["linear_num_value_heads"]), int(config["linear_value_head_dim"])
        return {"ssm.time_step_rank": heads, "ssm.inner_size": heads * width}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        heads = int(fields["ssm.time_step_rank"])
        return {"linear_num_value_heads": heads, "linear_value_head_dim": int(fields["ssm.inner_size"]) // heads}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope(Entry):
    """Rotary embedding (`rope_parameters` of Transformers 5): base, width, and scaling by YaRN or linearly.

    `latent` attention rotates a part of its own and scales its scores by YaRN (Peng et al., 2023), too; where
    `partial`, only a part of every head is rotated. `truncate` is a parameter of YaRN that no field carries (None:
    the default).
    """

    latent: bool = False
    partial: bool = False
    truncate: bool | None = None

    @property
    def fields(self) -> frozenset[str]:
        scaling = {"type", "factor", "original_context_length", *(f"yarn_{key}" for key in _BETAS)}
        scaling |= {"yarn_log_multiplier"} if self.latent else set()
        return frozenset({"rope.freq_base", "rope.dimension_count", *(f"rope.scaling.{one}" for one in scaling)})

    def differs(self, config: Config) -> str:
        rope = config["rope_parameters"]
        kind = rope["rope_type"]
        if kind not in ("default", *_SCALED) or (self.latent and kind == "linear"):
            return f"rope_type={kind}, llama.cpp supports default and {'yarn' if self.latent else 'linear, yarn'}"
        if kind != "yarn":
            return ""
        if rope.get("attention_factor") is not None:
            return f"attention_factor={rope['attention_factor']}, llama.cpp derives it from factor"
        if wrong := [key for key, beta in _BETAS.items() if (rope.get(key) or beta) != beta]:
            return f"{wrong[0]}={rope[wrong[0]]}, llama.cpp supports {_BETAS[wrong[0]]}"
        all_dim = rope.get("mscale_all_dim")
        if rope.get("mscale") != all_dim or self.latent != bool(all_dim):
            return f"mscale={rope.get('mscale')} and mscale_all_dim={all_dim}, llama.cpp needs equal ones for MLA alone"
        return ""

    def write(self, config: Config) -> dict[str, Value]:
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
        return int(_head_width(config) * (config["rope_parameters"].get("partial_rotary_factor") or 1.0))

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        kind = self._kind(fields)
        rope: dict[str, Any] = {"rope_type": kind, "rope_theta": short(fields.get("rope.freq_base", _BASE))}
        if self.partial:
            rope["partial_rotary_factor"] = fields["rope.dimension_count"] / _read_width(fields)
        if kind in _SCALED:
            rope["factor"] = short(fields["rope.scaling.factor"])
        if kind == "yarn":
            rope |= self._yarn(fields)
        return {"rope_parameters": rope}

    def _kind(self, fields: Fields) -> str:
        """The type of scaling. Like llama.cpp, a factor alone scales linearly."""
        _require(fields, "rope.scaling.type", "none", *(_SCALED[1:] if self.latent else _SCALED))
        if not (self.latent or self.partial):
            _require(fields, "rope.dimension_count", _read_width(fields))
        factor = fields.get("rope.scaling.factor", 0.0)
        kind = str(fields.get("rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear"))
        if self.latent and kind == "linear":
            raise ValueError(f"rope.scaling.factor={factor} without rope.scaling.type, read is yarn")
        return "default" if kind == "none" else kind

    def _yarn(self, fields: Fields) -> dict[str, Any]:
        length = fields.get("rope.scaling.original_context_length", fields["context_length"])
        yarn: dict[str, Any] = {"original_max_position_embeddings": int(length)}
        yarn |= {key: short(fields.get(f"rope.scaling.yarn_{key}", beta)) for key, beta in _BETAS.items()}
        if self.latent:
            scale = float(f"{fields['rope.scaling.yarn_log_multiplier'] / _LOG_MULTIPLIER:.6g}")
            yarn |= {"mscale": scale, "mscale_all_dim": scale}
        return yarn if self.truncate is None else yarn | {"truncate": self.truncate}


class LatentWidths(Entry):
    """Widths of latent attention. llama.cpp runs it as one key-value head, [latent, rotated part] wide."""

    @property
    def fields(self) -> frozenset[str]:
        widths = {f"{side}_length{ending}" for side in ("key", "value") for ending in ("", "_mla")}
        return frozenset({f"attention.{one}" for one in {"head_count_kv", *widths}})

    def differs(self, config: Config) -> str:
        """llama.cpp takes a model for DeepSeek-V2-Lite, which has no query of low rank, by its depth."""
        layers, vocab = config["num_hidden_layers"], config["vocab_size"]
        is_lite = layers in (26, 27) or (layers == 48 and vocab == 128256)
        if not is_lite or config.get("q_lora_rank") is None:
            return ""
        return f"num_hidden_layers={layers}, llama.cpp takes it for DeepSeek-V2-Lite; allowed are other depths"

    def write(self, config: Config) -> dict[str, Value]:
        rank, rotated = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
        return {
            "attention.head_count_kv": 1,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": int(config["qk_nope_head_dim"]) + rotated,
            "attention.value_length_mla": int(config["v_head_dim"]),
        }

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        """Files older than `attn_k_b` hold a head's own widths as the plain ones."""
        rotated = int(fields["rope.dimension_count"])
        key = fields.get("attention.key_length_mla", fields["attention.key_length"])
        return {
            "num_key_value_heads": int(fields["attention.head_count"]),
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": int(key) - rotated,
            "v_head_dim": int(fields.get("attention.value_length_mla", fields["attention.value_length"])),
        }


class Groups(Entry):
    """Expert groups of which a token selects some, scored by their two best experts. One group, or all, is no field."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"expert_group_count", "expert_group_used_count"})

    def write(self, config: Config) -> dict[str, Value]:
        groups, used = config.get("n_group") or 1, config.get("topk_group") or 1
        return {"expert_group_count": groups, "expert_group_used_count": used} if used < groups else {}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        return {
            "n_group": int(fields.get("expert_group_count", 1)) or 1,
            "topk_group": int(fields.get("expert_group_used_count", 1)) or 1,
        }


class GreedyGroups(Groups):
    """Groups that are scored by their best expert, which llama.cpp does not compute."""

    def differs(self, config: Config) -> str:
        if config.get("topk_method") != "group_limited_greedy" or not self.write(config):
            return ""
        return "topk_method=group_limited_greedy, llama.cpp scores a group by its two best experts, the model by one"

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        facts = super().read(fields, tensors)
        return facts | {"topk_method": "greedy" if facts["n_group"] == 1 else "group_limited_greedy"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gating(Entry):
    """The function that turns router logits into scores; each family has one."""

    sigmoid: bool = False

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"expert_gating_func"})

    def write(self, config: Config) -> dict[str, Value]:
        return {"expert_gating_func": self._function}

    def read(self, fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        _require(fields, "expert_gating_func", self._function)
        return {}

    @property
    def _function(self) -> int:
        return _SIGMOID if self.sigmoid else _SOFTMAX


def is_sigmoid(fields: Fields) -> bool:
    """Whether scores are sigmoids; files without the field are older than such models."""
    return int(fields.get("expert_gating_func", _SOFTMAX)) == _SIGMOID
