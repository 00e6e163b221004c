"""The bytes of a GGUF file: its head, and tensors at the places that a plan gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
from torch import Tensor

from ktbench.engine.gguf.encoding import encoded
from ktbench.engine.gguf.metadata import Value
from ktbench.engine.gguf.names import GgufType
from ktbench.engine.gguf.planning import ALIGNMENT, Plan, aligned
from ktbench.engine.gguf.tensors import Kind

# Token ids go in and out: llama.cpp then makes dummy tokens, as many as the metadata say.
_NO_VOCABULARY = "no_vocab"
_VALUES = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}


def write_head(path: Path, architecture: str, metadata: Mapping[str, Value], plan: Plan, main: GgufType) -> int:
    """Write metadata and the list of tensors to a new file; gives where its data begin.

    `main` is the type that llama.cpp shows for the whole file.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{main}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model(_NO_VOCABULARY)
    for key, value in metadata.items():
        writer.add_key_value(key, value, _VALUES[type(value)])
    writer.add_custom_alignment(ALIGNMENT)
    for info in plan.tensors.values():
        kind = gguf.GGMLQuantizationType[info.kind]
        writer.add_tensor_info(info.name, info.shape, np.dtype(np.float32), info.nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return aligned(path.stat().st_size)


class TensorFile:
    """Puts tensors where they belong. Raises ValueError for one of another shape than was announced."""

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

    def _at(self, name: str, tensor: Tensor, shape: tuple[int, ...], offset: int, kind: Kind) -> None:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: weights of shape {list(tensor.shape)}, the configuration asks for {list(shape)}")
        self._stream.seek(self._begin + offset)
        for chunk in encoded(tensor, kind):
            self._stream.write(chunk.data)
