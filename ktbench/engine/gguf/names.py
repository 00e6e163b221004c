"""Names of tensors: modules of Transformers on the left, as they are called in a decoder layer, those of GGUF right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Config = Mapping[str, Any]


class Change(Protocol):
    """One tensor of the network as one or more of the file. `join` undoes `split`; neither changes a number."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """What the file holds of a network's tensor."""
        ...

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The network's tensor."""
        ...


class Same:
    """As it is."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """See `Change`."""
        return (tensor,)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """See `Change`."""
        return parts[0]


class Row:
    """A matrix of one row, which the file holds as a vector."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """[n] of [1, n]."""
        return (tensor.reshape(-1),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[1, n] of [n]."""
        return parts[0].reshape(1, -1)


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Query or key rows of heads that llama.cpp rotates in neighbouring pairs, Transformers in halves.

    Only whole rows move, so `join` may be given rows of anything: weights, or quantised blocks as bytes. `heads` is the
    key of the configuration that counts the heads.
    """

    heads: str

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """Rows [H, 2, half] to [H, half, 2]."""
        return (self._swap(tensor, (config[self.heads], 2, -1)),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """Rows [H, half, 2] to [H, 2, half]."""
        return self._swap(parts[0], (config[self.heads], -1, 2))

    def _swap(self, tensor: Tensor, rows: tuple[int, int, int]) -> Tensor:
        return tensor.reshape(*rows, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


class LatentHeads:
    """`kv_b_proj` [H·(N+V), R] of latent attention as keys [H, R, N], transposed, and values [H, V, R]."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """Keys and values of each head."""
        heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
        both = tensor.reshape(heads, keys + config["v_head_dim"], -1)
        return both[:, :keys].swapaxes(1, 2), both[:, keys:]

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[H·(N+V), R] of keys and values."""
        import torch

        keys, values = parts
        return torch.cat([keys.swapaxes(1, 2), values], dim=1).reshape(-1, values.shape[-1])


# exact: float32. half: bf16, or fp16 where that is asked for. dense: the type of matrices outside of routed experts.
WeightClass = Literal["exact", "half", "dense"]
# In what matrices are written.
GgufType = Literal["F16", "BF16", "Q8_0", "Q4_0"]

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts")
_HALF = ("model.embed_tokens", "self_attn.kv_b_proj")
_ROUTERS = ("mlp.gate", "mlp.router", "mlp.shared_expert_gate")

WHOLE = {"model.embed_tokens": ["token_embd"], "model.norm": ["output_norm"], "lm_head": ["output"]}
NORMS = {"input_layernorm": ["attn_norm"], "post_attention_layernorm": ["ffn_norm"]}
LATE_NORMS = NORMS | {"post_attention_layernorm": ["post_attention_norm"]}
HEADS = {f"self_attn.{one}_proj": [f"attn_{one}"] for one in "qkv"} | {"self_attn.o_proj": ["attn_output"]}
HEAD_NORMS = {f"self_attn.{one}_norm": [f"attn_{one}_norm"] for one in "qk"}
LATENT = {
    "self_attn.q_proj": ["attn_q"],
    "self_attn.q_a_proj": ["attn_q_a"],
    "self_attn.q_a_layernorm": ["attn_q_a_norm"],
    "self_attn.q_b_proj": ["attn_q_b"],
    "self_attn.kv_a_proj_with_mqa": ["attn_kv_a_mqa"],
    "self_attn.kv_a_layernorm": ["attn_kv_a_norm"],
    "self_attn.kv_b_proj": ["attn_k_b", "attn_v_b"],
    "self_attn.o_proj": ["attn_output"],
}
ROUTER = {"mlp.gate": ["ffn_gate_inp"]}
CORRECTED = ROUTER | {"mlp.gate.e_score_correction_bias": ["exp_probs_b.bias"]}
DENSE = {f"mlp.{one}_proj": [f"ffn_{one}"] for one in ("gate", "up", "down")}
SHARED = {f"mlp.shared_experts.{one}_proj": [f"ffn_{one}_shexp"] for one in ("gate", "up", "down")}
GATED = {f"mlp.shared_expert.{one}_proj": [f"ffn_{one}_shexp"] for one in ("gate", "up", "down")}


def kind_of(module: str, last: str) -> WeightClass:
    """What numbers a file holds of `last`, such as weight, of a module (in a decoder layer: by its name there)."""
    if module in _HALF:
        return "half"
    is_matrix = last == "weight" and not module.endswith("norm") and module not in _ROUTERS
    return "dense" if is_matrix else "exact"


def expert_names(module: str) -> dict[str, str]:
    """Names in a file of all experts of the module `model.layers.N.mlp.experts`, by the field of `ExpertMatrices`.

    Each holds expert after expert: gate and up [E, I, H], down [E, H, I]; biases, where a family has them, are exact.
    """
    found = _EXPERTS.fullmatch(module)
    if not found:
        raise ValueError(f"GGUF: llama.cpp has no tensors for experts at {module}")
    names: dict[str, str] = {}
    for one in ("gate", "up", "down"):
        names |= {one: f"blk.{found[1]}.ffn_{one}_exps.weight", f"{one}_bias": f"blk.{found[1]}.ffn_{one}_exps.bias"}
    return names
