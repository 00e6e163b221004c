"""Reads a local Hugging Face folder through Transformers: safetensors only, no code from the folder."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ktbench.engine.checkpoint_files import inspect_checkpoint
from ktbench.resources import checkpoint_folder


def read_checkpoint(path: str) -> PreTrainedModel:
    """The model in a folder with its weights in bf16.

    Raises ValueError where the folder is not whole (see `inspect_checkpoint`) or lacks weights of the architecture.
    """
    inspect_checkpoint(path)
    folder = checkpoint_folder(path)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    read: Any = AutoModelForCausalLM.from_pretrained
    network, report = read(
        folder,
        config=config,
        dtype=torch.bfloat16,
        experts_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"model.path={path}: no weights for {missing[0]} and {len(missing) - 1} others")
    whole: PreTrainedModel = network
    whole.train(False)
    return whole
