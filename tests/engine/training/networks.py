"""Tiny Transformers models with routed experts, and batches to train them on."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.engine.tiny import shrunk

FAMILIES = ("qwen3_30b_a3b", "mixtral_8x7b", "deepseek_v2_lite", "gpt_oss_20b")
_PLAIN: dict[str, PreTrainedModel] = {}


def network(family: str) -> PreTrainedModel:
    """A copy of a tiny model of the family, the same each time, in bf16."""
    if family not in _PLAIN:
        torch.manual_seed(7)
        config = AutoConfig.for_model(**shrunk(family))
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        _PLAIN[family] = made
    return copy.deepcopy(_PLAIN[family])


def batch(seed: int = 0, tokens: int = 24) -> Tensor:
    """Token ids [2, tokens]."""
    return torch.randint(0, 256, (2, tokens), generator=torch.Generator().manual_seed(seed))
