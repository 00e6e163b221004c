"""Folders of adapters as PEFT saves them: checked without PyTorch, and merged into a model."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ktbench.engine.loading.config_file import read_object
from ktbench.resources import install_command

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LONGEST = 300  # characters of a reason


def require_adapter(folder: str) -> None:
    """Raises ValueError for a folder that holds no LoRA that PEFT saved (pickles are never read), and without PEFT."""
    for name in (_CONFIG, _WEIGHTS):
        if not (Path(folder) / name).is_file():
            raise ValueError(f"model.adapter={folder}: no {name} there, not an adapter that PEFT saved")
    kind = read_object(Path(folder) / _CONFIG, f"{folder}/{_CONFIG}").get("peft_type")
    if kind != "LORA":
        raise ValueError(f"model.adapter={folder}: {_CONFIG} has peft_type={kind}, allowed is LORA")
    if find_spec("peft") is None:
        raise ValueError(f"model.adapter={folder}: needs PEFT: {install_command('train')}")


def merge_adapter(network: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The network with the adapter's products added to its weights.

    Raises ValueError as `require_adapter`, and for an adapter of another model or without some of its factors.
    """
    require_adapter(folder)
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            # It goes on without them: the matrices concerned are not changed.
            warnings.filterwarnings("error", "Found missing adapter keys")
            adapted: Any = PeftModel.from_pretrained(network, folder, local_files_only=True)
        whole: PreTrainedModel = adapted.merge_and_unload()
    except Exception as error:  # whatever PEFT makes of an adapter that does not go with the network
        why = shorten(f"{type(error).__name__}: {error}", _LONGEST, placeholder=" …")
        raise ValueError(f"model.adapter={folder}: PEFT cannot load it ({why})") from error
    return whole
