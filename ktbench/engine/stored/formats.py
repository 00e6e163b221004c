"""In which formats the weights of a checkpoint are stored, from its headers alone; without PyTorch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

from ktbench.engine.checkpoint import checkpoint_config, is_extra, stored_weights
from ktbench.engine.gguf.header import PRECISIONS, read_header
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.stored.matrices import StoredWeights
from ktbench.resources import checkpoint_folder
from ktbench.spec.shape import moe_shape
from ktbench.spec.weights import FORMATS, Precision, StoredLayer

Role = Literal["experts", "dense", "attention"]
# Inside a layer, of a folder and of a GGUF file, the first that matches. Routers, norms and convolutions are none.
_ROLES: Mapping[Role, re.Pattern[str]] = {
    "experts": re.compile(r"(.*\.)?experts\.((\d+\.)?\w+\.weight|\w+_proj)|ffn_(gate|up|down)_exps\.weight"),
    "attention": re.compile(r"\w*(attn|attention)\.(?!conv)\w+\.weight|(attn|ssm)_\w+\.weight"),
    "dense": re.compile(r"(\w+\.)*\w*(_proj|w[123])\.weight|ffn_(gate|up|down)(_shexp)?\.weight"),
}
_LAYER = re.compile(r"(?:.*\.)?(?:layers|blk)\.(\d+)\.(.+)")
# Which matrices of an expert a tensor holds.
_MATRICES: Mapping[str, re.Pattern[str]] = {
    "gate": re.compile(r"\b(gate_proj|gate_up_proj|w1|ffn_gate_exps)\b"),
    "up": re.compile(r"\b(up_proj|gate_up_proj|w3|ffn_up_exps)\b"),
    "down": re.compile(r"\b(down_proj|w2|ffn_down_exps)\b"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFormats:
    """Formats of the matrices in a checkpoint's layers, that of the most weights first.

    Plain numbers are bf16. `experts` are the routed ones, `dense` all matrices that are neither these nor in an
    attention. What a checkpoint does not have has no format. `layers` are the MoE layers in their order.
    """

    experts: tuple[Precision, ...]
    dense: tuple[Precision, ...]
    attention: tuple[Precision, ...]
    layers: tuple[StoredLayer, ...] = field(default=(), compare=False)

    @property
    def native(self) -> Precision:
        """The precision that means all formats that experts are stored in (see `stands_for_all`); bf16 for numbers."""
        return next((kind for kind in self.experts if FORMATS[kind].block_bytes), "bf16")

    @property
    def native_attention(self) -> Precision:
        """The format of most weights of the attention."""
        return next(iter(self.attention), "bf16")


class _Weight(NamedTuple):
    """A tensor of a checkpoint: the format that it is computed on in, its weights, and its bytes with all scales.

    Of several matrices of an expert, each has a `name` that says which.
    """

    name: str
    format: Precision
    weights: int
    nbytes: int


def stored_formats(path: str) -> StoredFormats:
    """Those of a folder or of a GGUF file, without its layers that predict further tokens.

    Raises ValueError as `inspect_checkpoint` and `moe_shape`.
    """
    stored = _in_gguf(path) if is_gguf(checkpoint_folder(path)) else _in_folder(stored_weights(path))
    layers = moe_shape(checkpoint_config(path)).layers
    found = _by_layer_and_role(stored, layers)
    one_format = not is_gguf(checkpoint_folder(path))
    ordered = {role: _ordered(one for (_, of), held in found.items() if of == role for one in held) for role in _ROLES}
    return StoredFormats(
        experts=ordered["experts"],
        dense=ordered["dense"],
        attention=ordered["attention"],
        layers=tuple(_layer(found[key], one_format) for key in sorted(found) if key[1] == "experts"),
    )


def _by_layer_and_role(stored: Iterable[_Weight], layers: int) -> dict[tuple[int, Role], list[_Weight]]:
    found: dict[tuple[int, Role], list[_Weight]] = defaultdict(list)
    for one in stored:
        match = _LAYER.fullmatch(one.name)
        role = match and next((role for role, names in _ROLES.items() if names.fullmatch(match[2])), None)
        if match and role and int(match[1]) < layers and not is_extra(one.name, layers):
            found[int(match[1]), role].append(one)
    return dict(found)


def _ordered(stored: Iterable[_Weight]) -> tuple[Precision, ...]:
    """Their formats, that of the most weights first."""
    counts = Counter[Precision]()
    for one in stored:
        counts[one.format] += one.weights
    return tuple(kind for kind, _ in counts.most_common())


def _layer(experts: Sequence[_Weight], one_format: bool) -> StoredLayer:
    """A matrix that not all experts have in one format is computed on as numbers; with `one_format` all three are."""
    found = {
        field: {expert.format for expert in experts if names.search(expert.name)} for field, names in _MATRICES.items()
    }
    formats: list[Precision] = [kinds.pop() if len(kinds) == 1 else "bf16" for kinds in found.values()]
    if one_format and len(set(formats)) > 1:
        formats = ["bf16"] * len(formats)
    gate, up, down = formats
    return StoredLayer(gate=gate, up=up, down=down, nbytes=sum(expert.nbytes for expert in experts))


def _in_folder(weights: StoredWeights) -> Iterator[_Weight]:
    parts = {part for matrix in weights.matrices.values() for part in matrix.parts.values()}
    for name, matrix in weights.matrices.items():
        yield _Weight(name, matrix.format, prod(matrix.shape), weights.nbytes_of(name))
    for name, tensor in weights.tensors.items():
        if name not in parts and len(tensor.shape) in (2, 3):
            yield _Weight(name, weights.format_of(name), prod(tensor.shape), tensor.nbytes)


def _in_gguf(path: str) -> Iterator[_Weight]:
    for name, tensor in read_header(path).tensors.items():
        if len(tensor.shape) > 1:
            yield _Weight(name, PRECISIONS.get(tensor.kind, "bf16"), prod(tensor.shape), tensor.nbytes)
