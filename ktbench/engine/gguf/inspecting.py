"""Looks over a GGUF file before anything is loaded: reads its header only and imports no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ktbench.engine.gguf.families import OUR_CONFIG, family_in, family_of
from ktbench.engine.gguf.header import GgufHeader, read_header
from ktbench.engine.stored.sizes import require_sizes
from ktbench.spec.shape import known_config, moe_shape

_HEAD = "output.weight"


def is_gguf(path: str | Path) -> bool:
    """Whether a path is meant to be a GGUF file, by its name."""
    return Path(path).suffix == ".gguf" and not Path(path).is_dir()


def inspect_gguf(path: str | Path) -> dict[str, Any]:
    """The Hugging Face configuration of a whole GGUF file: as exported, else from its metadata.

    Raises ValueError as `read_header` and `require_sizes`, and for metadata of an architecture that is not known or
    that lack something.
    """
    header = read_header(path)
    try:
        config = known_config(_exported_config(header) if OUR_CONFIG in header.metadata else _described_config(header))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    require_sizes({name: tensor.shape for name, tensor in header.tensors.items()}, moe_shape(config), str(path))
    return config


def _exported_config(header: GgufHeader) -> dict[str, Any]:
    config = json.loads(header.metadata[OUR_CONFIG])
    if not isinstance(config, dict):
        raise ValueError(f"{OUR_CONFIG} holds {type(config).__name__}, must hold an object")
    family_of(config)
    return _with_own_head(config) if _HEAD in header.tensors else config


def _with_own_head(config: dict[str, Any]) -> dict[str, Any]:
    """What was tied when it was exported is not where the file has a head: the embedding in another type."""
    return config | {"tie_word_embeddings": False} if config.get("tie_word_embeddings") else config


def _described_config(header: GgufHeader) -> dict[str, Any]:
    family, tensors = family_in(header.metadata), len(header.tensors)
    layers = header.metadata.get(f"{family.architecture}.block_count", 0)
    if not 0 <= int(layers) <= tensors:
        raise ValueError(f"{family.architecture}.block_count={layers}, with {tensors} tensors")
    return family.config(header.metadata, header.tensors)
