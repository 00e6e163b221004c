"""Rotary embedding as metadata: base, width, and scaling by YaRN (Peng et al., 2023) or linearly."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ktbench.engine.gguf.metadata import Config, Fields, Value, head_width, short

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
