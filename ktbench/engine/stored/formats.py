"""In which formats the weights of a checkpoint are stored, from its headers alone; without PyTorch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from ktbench.engine.checkpoint import inspect_checkpoint, is_extra, stored_weights
from ktbench.engine.gguf.header import PRECISIONS, read_header
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.stored.matrices import StoredWeights
from ktbench.resources import checkpoint_folder
from ktbench.spec.shape import text_config
from ktbench.spec.weights import FORMATS, Precision

Role = Literal["experts", "dense", "attention"]
# Inside a layer, of a folder and of a GGUF file, the first that matches. Routers, norms and convolutions are none.
_ROLES: Mapping[Role, re.Pattern[str]] = {
    "experts": re.compile(r"(.*\.)?experts\.((\d+\.)?\w+\.weight|\w+_proj)|ffn_(gate|up|down)_exps\.weight"),
    "attention": re.compile(r"\w*(attn|attention)\.(?!conv)\w+\.weight|(attn|ssm)_\w+\.weight"),
    "dense": re.compile(r"(\w+\.)*\w*(_proj|w[123])\.weight|ffn_(gate|up|down)(_shexp)?\.weight"),
}
_LAYER = re.compile(r"(?:.*\.)?(?:layers|blk)\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFormats:
    """Formats of the matrices in a checkpoint's layers, that of the most weights first.

    Plain numbers are bf16, and what is computed on as such: formats of super-blocks whose rows do not fill these.

    `experts` are the routed ones, `dense` all matrices that are neither these nor in an attention. What a checkpoint
    does not have has no format.
    """

    experts: tuple[Precision, ...]
    dense: tuple[Precision, ...]
    attention: tuple[Precision, ...]


# Name, format and number of weights of a matrix.
_Weight = tuple[str, Precision, int]


def stored_formats(path: str) -> StoredFormats:
    """Those of a folder or of a GGUF file, without its layers that predict further tokens.

    Raises ValueError as `inspect_checkpoint`.
    """
    config = inspect_checkpoint(path)
    stored = _in_gguf(path) if is_gguf(checkpoint_folder(path)) else _in_folder(stored_weights(path))
    found = _counted(stored, config)
    ordered = {role: tuple(kind for kind, _ in counts.most_common()) for role, counts in found.items()}
    return StoredFormats(experts=ordered["experts"], dense=ordered["dense"], attention=ordered["attention"])


def _counted(stored: Iterable[_Weight], config: Mapping[str, Any]) -> dict[Role, Counter[Precision]]:
    layers, found = text_config(config)["num_hidden_layers"], {role: Counter[Precision]() for role in _ROLES}
    for name, kind, count in stored:
        match = _LAYER.fullmatch(name)
        role = match and next((role for role, names in _ROLES.items() if names.fullmatch(match[2])), None)
        if match and role and int(match[1]) < layers and not is_extra(name, layers):
            found[role][kind] += count
    return found


def _in_folder(weights: StoredWeights) -> Iterator[_Weight]:
    parts = {part for matrix in weights.matrices.values() for part in matrix.parts.values()}
    cut = {matrix.format for matrix in weights.matrices.values() if not matrix.is_whole}
    for name, matrix in weights.matrices.items():
        numbers = matrix.format in cut and FORMATS[matrix.format].super_blocks
        yield name, "bf16" if numbers else matrix.format, prod(matrix.shape)
    for name, tensor in weights.tensors.items():
        if name not in parts and len(tensor.shape) in (2, 3):
            yield name, weights.format_of(name), prod(tensor.shape)


def _in_gguf(path: str) -> Iterator[_Weight]:
    for name, tensor in read_header(path).tensors.items():
        if len(tensor.shape) > 1:
            yield name, PRECISIONS.get(tensor.kind, "bf16"), prod(tensor.shape)
