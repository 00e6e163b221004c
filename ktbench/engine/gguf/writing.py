"""Plans and writes a GGUF file: what it will hold and where, its head, then its tensors piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.forms import is_experts, read_form
from ktbench.engine.gguf.facts import Config, Value
from ktbench.engine.gguf.families import Family, GgufType, TensorNames, WeightClass, expert_tensors
from ktbench.engine.gguf.header import ALIGNMENT, TensorInfo, TensorType, aligned
from ktbench.spec.weights import BLOCK

# Whose file type goes by another name.
_FILE_TYPES: Mapping[str, str] = {"MXFP4": "MXFP4_MOE"}
_QUANTISED = ("Q8_0", "Q4_0", "MXFP4")
# SentencePiece's, whose tokens are texts with this in place of a space.
_TOKENIZER, _SPACE = "llama", "▁"
_VALUES = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}
# Quantising takes several times the memory of the float32 numbers it is given.
_CHUNK = 2**20
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorTypes:
    """The types of routed experts and of all other matrices."""

    experts: GgufType
    dense: GgufType

    def of(self, kind: WeightClass) -> GgufType | Literal["F32"]:
        """The type of a tensor outside of routed experts."""
        if kind == "exact":
            return "F32"
        half: GgufType = "F16" if self.dense == "F16" else "BF16"
        return half if kind == "half" else self.dense


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkTensor:
    """A tensor of the network outside of its routed experts."""

    name: str
    mapped: TensorNames


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of one layer: `names` in the file by field of `ExpertMatrices`."""

    name: str
    count: int
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`parts` of the network in its order, and `tensors` of the file by name, at offsets from where its data begin."""

    parts: tuple[NetworkTensor | Experts, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def data_bytes(self) -> int:
        """Of all tensors with what aligns them."""
        last = list(self.tensors.values())[-1]
        return aligned(last.offset + last.nbytes)


def plan_file(network: PreTrainedModel, family: Family, config: Config, types: TensorTypes) -> Plan:
    """The file of a network, which may be on `meta`.

    Raises ValueError for a tensor that llama.cpp lacks, and for rows that are no whole number of blocks.
    """
    experts = {name: module for name, module in network.named_modules() if is_experts(module)}
    parts: dict[str, NetworkTensor | Experts] = {}
    infos: list[TensorInfo] = []
    for key, tensor in network.state_dict().items():
        if (owner := key.rpartition(".")[0]) not in experts:
            mapped = family.mapped(key)
            parts[key] = NetworkTensor(name=key, mapped=mapped)
            split = mapped.split(tensor.to("meta"), config)
            infos += [_info(name, types.of(mapped.kind), tuple(one.shape)) for name, one in split.items()]
        elif owner not in parts:
            form = read_form(experts[owner])
            tensors = expert_tensors(owner, form)
            names = {field: name for field, (name, _) in tensors.items()}
            parts[owner] = Experts(name=owner, count=form.experts, names=names)
            for field, (name, shape) in tensors.items():
                infos.append(_info(name, "F32" if "bias" in field else types.experts, shape))
    return Plan(parts=tuple(parts.values()), tensors={info.name: info for info in _in_line(infos)})


def _info(name: str, kind: GgufType | Literal["F32"], shape: tuple[int, ...]) -> TensorInfo:
    if kind in _QUANTISED and shape[-1] % BLOCK:
        raise ValueError(f"{name} as {kind}: rows of {shape[-1]} weights, must be a multiple of {BLOCK}")
    return TensorInfo(name=name, kind=kind, shape=shape, offset=0)


def _in_line(infos: list[TensorInfo]) -> Iterator[TensorInfo]:
    offset = 0
    for info in infos:
        yield replace(info, offset=offset)
        offset = aligned(offset + info.nbytes)


def encode_rows(tensor: Tensor, kind: TensorType) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor, row after row. Blocks are those of the `gguf` package, which rounds as llama.cpp does."""
    width = tensor.shape[-1]
    matrix, step = tensor.detach().reshape(-1, width), max(1, _CHUNK // width)
    for first in range(0, len(matrix), step):
        rows = matrix[first : first + step]
        if kind in _FLOATS:
            yield rows.to(_FLOATS[kind]).contiguous().view(torch.uint8).numpy()
        else:
            yield gguf.quants.quantize(rows.float().numpy(), gguf.GGMLQuantizationType[kind])


def write_head(path: Path, architecture: str, metadata: Mapping[str, Value], plan: Plan, main: GgufType) -> int:
    """Write metadata and the list of tensors to a new file; gives where its data begin.

    `main` is the type that llama.cpp shows for the whole file.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{_FILE_TYPES.get(main, main)}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    # Token ids go in and out. llama.cpp's server needs a text for each, too: its number.
    writer.add_tokenizer_model(_TOKENIZER)
    writer.add_token_list([f"{_SPACE}{token}" for token in range(int(metadata[f"{architecture}.vocab_size"]))])
    writer.add_add_bos_token(False)
    for key, value in metadata.items():
        writer.add_key_value(key, value, _VALUES[type(value)])
    writer.add_custom_alignment(ALIGNMENT)
    for info in plan.tensors.values():
        kind = gguf.GGMLQuantizationType[info.kind]
        writer.add_tensor_info(info.name, info.shape, np.dtype(np.float32), info.nbytes, raw_dtype=kind)
    with closing(writer):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    return aligned(path.stat().st_size)


class TensorFile:
    """Writes tensors at their offsets. Raises ValueError for one of another shape than planned."""

    def __init__(self, stream: BinaryIO, begin: int, plan: Plan) -> None:
        self._stream, self._begin, self._tensors = stream, begin, plan.tensors
        stream.truncate(begin + plan.data_bytes)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write a whole tensor."""
        info = self._tensors[name]
        self._at(name, tensor, info.shape, info.offset, info.kind)

    def put_expert(self, name: str, i: int, matrix: Tensor) -> None:
        """Write what expert `i` has of a tensor of all."""
        info = self._tensors[name]
        self._at(name, matrix, info.shape[1:], info.offset + i * (info.nbytes // info.shape[0]), info.kind)

    def _at(self, name: str, tensor: Tensor, shape: tuple[int, ...], offset: int, kind: TensorType) -> None:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: weights of shape {list(tensor.shape)}, the configuration needs {list(shape)}")
        self._stream.seek(self._begin + offset)
        for chunk in encode_rows(tensor, kind):
            self._stream.write(chunk.data)
