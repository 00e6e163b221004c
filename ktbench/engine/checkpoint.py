"""Reads a local Hugging Face folder through Transformers: safetensors only, no code from the folder."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ktbench.core.spec import ModelSpec
from ktbench.engine.checkpoint_files import inspect_checkpoint


def read_checkpoint(model: ModelSpec) -> PreTrainedModel:
    """The model in `model.path` with its weights in bf16.

    Raises ValueError where the folder is not whole (see `inspect_checkpoint`) or lacks weights of the architecture.
    """
    assert model.path is not None
    inspect_checkpoint(model.path)
    config = AutoConfig.from_pretrained(model.path, local_files_only=True, trust_remote_code=False)
    network, report = AutoModelForCausalLM.from_pretrained(
        model.path,
        config=config,
        dtype=torch.bfloat16,
        experts_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"model.path={model.path}: no weights for {missing[0]} and {len(missing) - 1} others")
    checked: PreTrainedModel = network.eval()
    return checked
