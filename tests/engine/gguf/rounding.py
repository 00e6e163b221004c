"""What the weights of a network are after an export, by the gguf package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.forms import ExpertMatrices, is_experts, read_form
from ktbench.spec.weights import Precision

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")

PRECISIONS: dict[Any, Precision] = {"Q8_0": "q8_0", "Q4_0": "q4_0", "MXFP4": "mxfp4"}
MATRICES = ("gate", "up", "down")
# What an export leaves unquantised beside vectors: routers, the embedding, and a matrix that it cuts across blocks.
UNQUANTISED = ("mlp.gate.weight", "mlp.router.weight", "expert_gate.weight", "embed_tokens.weight", "kv_b_proj.weight")


def blocks_of(tensor: Tensor, kind: Any) -> NDArray[np.uint8]:
    """A matrix as blocks."""
    blocks: NDArray[np.uint8] = gguf.quants.quantize(
        tensor.float().contiguous().numpy(), gguf.GGMLQuantizationType[kind]
    )
    return blocks


def quantised(tensor: Tensor, kind: Any) -> Tensor:
    """What the blocks of a matrix stand for, in float32."""
    if kind == "BF16":
        return tensor.float()
    return torch.from_numpy(numbers_of(blocks_of(tensor, kind), kind))


def numbers_of(blocks: NDArray[np.uint8], kind: Any) -> NDArray[np.float32]:
    """What blocks stand for."""
    with np.errstate(over="ignore"):  # powers of two that are as large as float32 has
        numbers: NDArray[np.float32] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return numbers


def quantise(network: PreTrainedModel, kind: Any) -> None:
    """Round the weights of a network to what an export holds of them, then to bf16."""
    for name, module in network.named_modules():
        if is_experts(module):
            for i in range(len(module.get_parameter("down_proj"))):
                expert = stored_experts(module, i)
                for field in MATRICES:
                    getattr(expert, field).copy_(quantised(getattr(expert, field), kind))
        else:
            for key, parameter in module.named_parameters(prefix=name, recurse=False):
                if parameter.dim() == 2 and not key.endswith(UNQUANTISED):
                    parameter.copy_(quantised(parameter, kind))


def tensors_in(path: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes, rows first, of the tensors in a file."""
    tensors = gguf.GGUFReader(path).tensors
    return {one.name: (one.tensor_type.name, tuple(int(size) for size in reversed(one.shape))) for one in tensors}


def stored_experts(module: nn.Module, i: int) -> ExpertMatrices:
    """Expert `i` of a module of Transformers."""
    return read_form(module).matrices(module, i)
