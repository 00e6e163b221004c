"""Checks a checkpoint by its headers without importing PyTorch, and loads a Hugging Face folder (safetensors only)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ktbench.engine.gguf.inspecting import inspect_gguf, is_gguf
from ktbench.resources import checkpoint_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def inspect_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The configuration in a local Hugging Face folder or a GGUF file, once its weight files have been found whole.

    Raises ValueError naming the file and what is wrong with it: no `config.json`, quantised weights, no safetensors
    (pickles are never read), a file that the index names but is missing, a truncated or damaged file; for a GGUF file
    see `inspect_gguf`.
    """
    path = checkpoint_folder(str(folder))
    if is_gguf(path):
        return inspect_gguf(path)
    if not path.is_dir():
        raise ValueError(f"model.path={folder}: no such folder")
    config = _read_json(path / "config.json", f"model.path={folder}: no config.json there, not a Hugging Face folder")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ValueError(f"{path / 'config.json'}: weights quantised by {method}, allowed are bf16, fp16 and fp32")
    for file in _weight_files(path):
        _check_whole(file)
    return config


def _read_json(file: Path, missing: str) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(missing)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file}: holds {type(content).__name__}, must hold an object")
    return content


def _weight_files(path: Path) -> list[Path]:
    """Files that hold the weights: one, or those that the index names."""
    if (path / _SINGLE).is_file():
        return [path / _SINGLE]
    if not (path / _INDEX).is_file():
        raise ValueError(_no_weights(path))
    index = _read_json(path / _INDEX, "")
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path / _INDEX}: has no weight_map from tensors to files")
    return [path / name for name in sorted(set(names.values()))]


def _no_weights(path: Path) -> str:
    pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
    if pickles:
        return f"model.path={path}: only pickled weights ({pickles[0]}); pickles are never read, convert to safetensors"
    return f"model.path={path}: no weights there, neither {_SINGLE} nor {_INDEX}"


def _check_whole(file: Path) -> None:
    """A safetensors file is its header and exactly the bytes which the header promises."""
    if not file.is_file():
        raise ValueError(f"{file}: named by {_INDEX} but missing")
    try:
        with safe_open(file, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated or damaged ({error})") from None


def read_checkpoint(path: str) -> PreTrainedModel:
    """The model in a folder with its weights in bf16.

    Raises ValueError where the folder is not whole (see `inspect_checkpoint`) or lacks weights of the architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

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
