"""Checks a checkpoint by its headers without importing PyTorch, and loads a Hugging Face folder (safetensors only)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from ktbench.engine.gguf.inspecting import inspect_gguf, is_gguf
from ktbench.resources import checkpoint_folder
from ktbench.spec.shape import known_config, text_config
from ktbench.spec.weights import BLOCK

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from ktbench.spec.run_spec import ModelSpec

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MODELOPT = "hf_quant_config.json"  # where NVIDIA's Model Optimizer says what config.json may leave out
_NUMBERS = ("BF16", "F16", "F32")  # as safetensors names them
# Quantised weights that are read, of which families; their tensors.
_READ = (("mxfp4", "gpt_oss"),)
_ALLOWED = "bf16, fp16 and fp32, and mxfp4 of gpt_oss"
_BLOCKS, _SCALES = "_blocks", "_scales"
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
    config = _released_config(str(folder))
    method = _quantised_by(path, config)
    if method is not None and (method, config.get("model_type")) not in _READ:
        raise ValueError(f"model.path={folder}: weights quantised by {method}, allowed are {_ALLOWED}")
    tensors = _tensors(weight_files(path))
    _require_numbers(tensors, packed=method is not None)
    return known_config(config)


def is_mxfp4(path: str) -> bool:
    """Whether the routed experts of a whole checkpoint are in MXFP4, as gpt-oss is released."""
    return not is_gguf(path) and _quantised_by(checkpoint_folder(path), _released_config(path)) == "mxfp4"


def _released_config(path: str) -> dict[str, Any]:
    missing = f"model.path={path}: no config.json there, not a Hugging Face folder"
    return _read_json(checkpoint_folder(path) / "config.json", missing)


def _quantised_by(path: Path, config: Mapping[str, Any]) -> str | None:
    """The method by which the files next to the weights say that they are quantised; None: plain numbers."""
    for one in (config, text_config(config)):
        if quantised := one.get("quantization_config"):
            return str(quantised.get("quant_method") if isinstance(quantised, dict) else quantised)
    return "modelopt" if (path / _MODELOPT).is_file() else None


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


def weight_files(path: Path) -> list[Path]:
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


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a file, its type as safetensors names it."""

    file: Path
    kind: str
    shape: tuple[int, ...]


def _tensors(files: Iterable[Path]) -> dict[str, _Stored]:
    """By name. A safetensors file is its header and exactly the bytes which the header promises."""
    found: dict[str, _Stored] = {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file}: named by {_INDEX} but missing")
        try:
            with safe_open(file, framework="numpy") as held:
                for name in held.keys():  # noqa: SIM118
                    part = held.get_slice(name)
                    found[name] = _Stored(file, part.get_dtype(), tuple(part.get_shape()))
        except SafetensorError as error:
            raise ValueError(f"{file}: truncated or damaged ({error})") from None
    return found


def _require_numbers(tensors: Mapping[str, _Stored], *, packed: bool) -> None:
    """Raise ValueError for a tensor that is no plain numbers, nor where `packed` MXFP4 blocks with their scales."""
    for name, one in tensors.items():
        if packed and one.kind == "U8" and name.endswith((_BLOCKS, _SCALES)):
            _require_pair(tensors, name)
        elif one.kind not in _NUMBERS and not name.endswith(_EXTRAS):
            raise ValueError(f"{one.file}: {name} holds {one.kind}, allowed are {', '.join(_NUMBERS)}")


def _require_pair(tensors: Mapping[str, _Stored], name: str) -> None:
    owner = name.removesuffix(_BLOCKS).removesuffix(_SCALES)
    blocks, scales = (tensors.get(owner + suffix) for suffix in (_BLOCKS, _SCALES))
    if blocks is None or scales is None:
        lacks = owner + (_BLOCKS if blocks is None else _SCALES)
        raise ValueError(f"{tensors[name].file}: {name} without {lacks}")
    if scales.shape != blocks.shape[:-1] or blocks.shape[-1:] != (BLOCK // 2,):
        raise ValueError(
            f"{blocks.file}: {owner}{_BLOCKS} is {blocks.shape} and {owner}{_SCALES} {scales.shape}, must be "
            f"[..., {BLOCK // 2}] and the same without the last"
        )


def read_checkpoint(model: ModelSpec) -> PreTrainedModel:
    """The model in a folder, or its first layers, with its weights in bf16.

    Layers that predict further tokens are left out. Raises ValueError where the folder is not whole (see
    `inspect_checkpoint`), lacks weights of the architecture or has others than those.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    assert model.path is not None
    inspect_checkpoint(model.path)
    config = AutoConfig.for_model(**model.config)
    read: Any = AutoModelForCausalLM.from_pretrained
    network, report = read(
        checkpoint_folder(model.path),
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
        raise ValueError(f"model.path={model.path}: no weights for {missing[0]} and {len(missing) - 1} others")
    if unknown := [name for name in sorted(report["unexpected_keys"]) if not is_extra(name, config)]:
        name = type(network).__name__
        raise ValueError(f"model.path={model.path}: {name} has no place for {unknown[0]} and {len(unknown) - 1} others")
    whole: PreTrainedModel = network
    whole.train(False)
    return whole


def is_extra(name: str, config: PretrainedConfig) -> bool:
    """Whether a tensor is rightly left out: it is no weight of the layers that are read."""
    layer = _LAYER.search(name)
    beyond = layer is not None and int(layer[1]) >= config.get_text_config().num_hidden_layers
    return beyond or name.startswith(_BESIDES) or name.endswith(_EXTRAS)
