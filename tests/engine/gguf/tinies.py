"""Tiny models of the families that llama.cpp supports, in sizes that it accepts, and checkpoints of them on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.spec.run_spec import ModelSpec
from tests.engine.families.plain import build
from tests.engine.tiny import tiny_model

# Rows are whole blocks of 32; heads are as wide as llama.cpp's attention likes them.
_WIDTHS: dict[str, Any] = {"head_dim": 32, "moe_intermediate_size": 64}
_LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
_GROUPS = {"n_group": 4, "topk_group": 2, "q_lora_rank": 32}
# By the name of a known model: what differs from the tiny one of `tests.engine.tiny`.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_30b_a3b": _WIDTHS,
    "qwen2_57b_a14b": {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96},
    "mixtral_8x7b": {},
    "deepseek_v2_lite": _LATENT | {"moe_intermediate_size": 64},
    "deepseek_v3": _LATENT | _GROUPS | {"moe_intermediate_size": 64},
    "glm_4_5_air": _WIDTHS | {"use_qk_norm": True},
    "gpt_oss_20b": {"head_dim": 32, "hidden_size": 96},
    "qwen3_next_80b_a3b": _WIDTHS
    | {
        "shared_expert_intermediate_size": 96,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_value_heads": 8,
    },
    "minimax_m2": {"head_dim": 32, "intermediate_size": 64},
}
# Wide enough for logits that tell tokens apart, in a network this narrow.
_SPREAD = 0.15


def tiny_of(name: str, **changes: Any) -> ModelSpec:
    """A tiny synthetic model."""
    return tiny_model(name, **(FAMILIES[name] | {"initializer_range": _SPREAD} | changes))


def restless(name: str, **changes: Any) -> PreTrainedModel:
    """The same in plain Transformers, with norms, biases and corrections that are not what they are initialised to."""
    network = build(tiny_of(name, **changes)).requires_grad_(False)
    draw = torch.Generator().manual_seed(7)
    for tensor in network.state_dict().values():
        if tensor.dim() == 1:
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=draw))
    return network


def saved(network: PreTrainedModel, folder: Path, **options: Any) -> ModelSpec:
    """The model of a folder that holds the network, experts each for itself as on the Hub."""
    network.save_pretrained(folder, **options)
    config = inspect_checkpoint(folder)
    layers = config["num_hidden_layers"]
    whole = tiny_model()
    return replace(whole, name=folder.name, config=config, full_layers=layers, path=str(folder))
