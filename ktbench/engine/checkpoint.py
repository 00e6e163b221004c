"""Checks a checkpoint by its headers without importing PyTorch, and loads a Hugging Face folder (safetensors only)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ktbench.engine.gguf.inspecting import inspect_gguf, is_gguf
from ktbench.resources import checkpoint_folder
from ktbench.spec.shape import known_config, text_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MODELOPT = "hf_quant_config.json"  # where NVIDIA's Model Optimizer says what config.json may leave out
_NUMBERS = ("BF16", "F16", "F32")  # as safetensors names them
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# What predicts further tokens, and what sees images.
_BESIDES = ("mtp.", "vision_tower.", "mm_projector.")
# Buffers that old versions of Transformers saved, computed anew by this one.
_EXTRAS = ("rotary_emb.inv_freq", "position_ids")


def inspect_checkpoint(folder: str | Path) -> dict[str, Any]:
    """The configuration in a local Hugging Face folder or a GGUF file, once its weight files have been found whole.

    Raises ValueError naming the file and what is wrong with it: no `config.json`, quantised weights, described or not,
    no safetensors (pickles are never read), a file that the index names but is missing, a truncated or damaged file;
    for a GGUF file see `inspect_gguf`.
    """
    path = checkpoint_folder(str(folder))
    if is_gguf(path):
        return inspect_gguf(path)
    if not path.is_dir():
        raise ValueError(f"model.path={folder}: no such folder")
    config = _read_json(path / "config.json", f"model.path={folder}: no config.json there, not a Hugging Face folder")
    _refuse_quantised(path, config)
    for file in _weight_files(path):
        _check_whole(file)
    return known_config(config)


def _refuse_quantised(path: Path, config: Mapping[str, Any]) -> None:
    for one in (config, text_config(config)):
        if quantised := one.get("quantization_config"):
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            raise ValueError(f"{path / 'config.json'}: weights quantised by {method}, allowed are bf16, fp16 and fp32")
    if (path / _MODELOPT).is_file():
        raise ValueError(f"{path / _MODELOPT}: weights quantised by modelopt, allowed are bf16, fp16 and fp32")


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
    """A safetensors file is its header and exactly the bytes which the header promises, all of them plain numbers."""
    if not file.is_file():
        raise ValueError(f"{file}: named by {_INDEX} but missing")
    try:
        with safe_open(file, framework="numpy") as held:
            kinds = {name: held.get_slice(name).get_dtype() for name in held.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated or damaged ({error})") from None
    for name, kind in kinds.items():
        if kind not in _NUMBERS and not name.endswith(_EXTRAS):
            raise ValueError(f"{file}: {name} holds {kind}, allowed are {', '.join(_NUMBERS)}")


def read_checkpoint(path: str) -> PreTrainedModel:
    """The model in a folder with its weights in bf16.

    Layers that predict further tokens are left out. Raises ValueError where the folder is not whole (see
    `inspect_checkpoint`), lacks weights of the architecture or has others than those.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**inspect_checkpoint(path))
    read: Any = AutoModelForCausalLM.from_pretrained
    network, report = read(
        checkpoint_folder(path),
        config=config,
        key_mapping={r"^language_model\.": ""},
        dtype=torch.bfloat16,
        experts_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"model.path={path}: no weights for {missing[0]} and {len(missing) - 1} others")
    if unknown := [name for name in sorted(report["unexpected_keys"]) if not _is_extra(name, config)]:
        raise ValueError(
            f"model.path={path}: {type(network).__name__} has no place for {unknown[0]} and {len(unknown) - 1} others"
        )
    whole: PreTrainedModel = network
    whole.train(False)
    return whole


def _is_extra(name: str, config: PretrainedConfig) -> bool:
    """Whether a tensor is rightly left out: of a layer beyond the last, which predicts further tokens, and the like."""
    layer = _LAYER.search(name)
    beyond = layer is not None and int(layer[1]) >= config.get_text_config().num_hidden_layers
    return beyond or name.startswith(_BESIDES) or name.endswith(_EXTRAS)
