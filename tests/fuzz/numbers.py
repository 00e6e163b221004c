"""The numbers that a checkpoint stands for, as readers other than the engine's see its bytes.

Safetensors are parsed as their format says, quantised matrices by one formula each over the whole matrix; GGUF files by
the `gguf` package of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.forms import ExpertBlocks, ExpertMatrices, PackableStore
from ktbench.engine.gguf.families import family_of
from ktbench.spec.weights import BLOCK_BYTES, FORMATS

Numbers = Mapping[str, Tensor]
_KINDS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool}
_KINDS |= {"U8": torch.uint8, "I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn}
_PLAIN = (torch.bfloat16, torch.float16, torch.float32)
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place among the nibbles of a word of each of eight neighbours
_ON_THE_HUB = {".block_sparse_moe.": ".mlp.", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
_FIELDS = ("gate", "up", "down")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class FolderTruth:
    """The numbers of a safetensors folder, by the names of plain tensors."""

    def __init__(self, folder: Path, method: str) -> None:
        tensors = _tensors(folder)
        self._numbers = {name: one.float() for name, one in tensors.items() if one.dtype in _PLAIN}
        self._numbers |= dict(filter(None, (_matrix(tensors, name, method) for name in tensors)))

    def of_network(self, name: str) -> Tensor:
        """A parameter outside of routed experts. A tied head is the embedding."""
        return self._numbers[_EMBEDDING if name == _HEAD and _HEAD not in self._numbers else name]

    def of_expert(self, module: str, i: int) -> Sequence[Tensor]:
        """Gate, up and down, then biases."""
        if (both := self._numbers.get(f"{module}.gate_up_proj")) is None:
            return [self._numbers[f"{module}.{i}.{field}_proj.weight"] for field in _FIELDS]
        down = self._numbers[f"{module}.down_proj"]  # gpt-oss: by columns, gate and up take turns
        bias, down_bias = (self._numbers[f"{module}.{one}_proj_bias"][i] for one in ("gate_up", "down"))
        return [both[i, :, ::2].T, both[i, :, 1::2].T, down[i].T, bias[::2], bias[1::2], down_bias]


def _tensors(folder: Path) -> dict[str, Tensor]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return _of_file(single)
    places = json.loads(index.read_text())["weight_map"]
    files = {file: _of_file(folder / file) for file in set(places.values())}
    return {_plain_name(name): files[file][_plain_name(name)] for name, file in places.items()}


def _of_file(file: Path) -> dict[str, Tensor]:
    content = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {_plain_name(name): _tensor(content[begin:], one) for name, one in header.items() if name != "__metadata__"}


def _tensor(data: bytearray, entry: Any) -> Tensor:
    first, last = entry["data_offsets"]
    kind, shape = _KINDS[entry["dtype"]], entry["shape"]
    return torch.frombuffer(data[first:last], dtype=kind).view(shape) if last > first else torch.empty(shape).to(kind)


def _plain_name(name: str) -> str:
    for other, plain in _ON_THE_HUB.items():
        name = name.replace(other, plain)
    return name


def _matrix(tensors: Numbers, name: str, method: str) -> tuple[str, Tensor] | None:
    """What a tensor with codes and those beside it stand for, by the name of the plain one."""
    owner, _, last = name.rpartition(".")
    codes, beside = tensors[name], {one.rpartition(".")[2]: held for one, held in tensors.items() if _is_of(owner, one)}
    if last == "weight" and codes.dtype == torch.float8_e4m3fn:
        scale = beside["weight_scale_inv"].float().repeat_interleave(128, 0).repeat_interleave(128, 1)
        found = codes.float() * scale[: codes.shape[0], : codes.shape[1]]
    elif last == "weight" and codes.dtype == torch.uint8:
        pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
        found = _E2M1[pairs.int()] * _spread(beside["weight_scale"].float() * beside["weight_scale_2"], pairs.shape[1])
    elif last == "weight_packed":
        numbers = _nibbles(codes).float() - 8
        found = numbers * _spread(beside["weight_scale"].float(), numbers.shape[1])
    elif last == "qweight":
        found = _with_zeros(beside, method == "awq")
    else:
        return None
    return f"{owner}.weight", found


def _is_of(owner: str, name: str) -> bool:
    return name.rpartition(".")[0] == owner


def _nibbles(words: Tensor, order: Sequence[int] = range(8)) -> Tensor:
    """[M, 8 W] of int32 [M, W]."""
    return torch.stack([words >> (4 * place) & 15 for place in order], dim=-1).flatten(1)


def _with_zeros(beside: Numbers, is_awq: bool) -> Tensor:
    words, scales, zeros = beside["qweight"], beside["scales"].float().T, beside["qzeros"]
    if is_awq:
        codes, zero = _nibbles(words, _AWQ_ORDER).T, _nibbles(zeros, _AWQ_ORDER).T
    else:
        codes, zero = _nibbles(words.T.contiguous()), (_nibbles(zeros).T + 1) & 15
    columns = codes.shape[1]
    return (codes - _spread(zero.float(), columns)) * _spread(scales, columns)


def _spread(groups: Tensor, columns: int) -> Tensor:
    return groups.repeat_interleave(columns // groups.shape[1], 1)


class FileTruth:
    """The numbers of a GGUF file, by its own names; those of a network's tensors in any order."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self._family = family_of(config)
        self._numbers = {one.name: _dequantised(one) for one in gguf.GGUFReader(path).tensors}

    def of_network(self, name: str) -> Tensor:
        """All that the file holds of a parameter."""
        return torch.cat([self._numbers[one].flatten() for one in self._family.mapped(name).names])

    def of_expert(self, module: str, i: int) -> Sequence[Tensor]:
        """Gate, up and down, then biases."""
        layer = module.split(".")[2]
        names = [f"blk.{layer}.ffn_{field}_exps.{last}" for last in ("weight", "bias") for field in _FIELDS]
        return [self._numbers[name][i] for name in names if name in self._numbers]


def _dequantised(tensor: Any) -> Tensor:
    numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(numbers, np.float32).reshape(tensor.shape[::-1].tolist()))


Truth = FolderTruth | FileTruth


def require_network(truth: Truth, network: PreTrainedModel) -> None:
    """Raise AssertionError where a parameter that was loaded is not what the checkpoint holds."""
    for name, parameter in network.named_parameters():
        if parameter.is_meta or ".experts." in name:
            continue
        seen, expected = parameter.detach(), truth.of_network(name)
        if isinstance(truth, FileTruth):
            seen, expected = (one.flatten().float().sort().values for one in (seen, expected))
        _require_close(seen, expected, name)


def require_experts(truth: Truth, module: str, store: PackableStore, count: int) -> None:
    """Raise AssertionError where what experts are packed from is not what the checkpoint holds."""
    for i in range(count):
        for seen, expected in zip(_held(store(i)), truth.of_expert(module, i), strict=True):
            _require_close(seen, expected, f"{module}, expert {i}")


def _held(expert: ExpertMatrices | ExpertBlocks) -> Sequence[Tensor]:
    if isinstance(expert, ExpertMatrices):
        return expert.tensors
    kinds = (expert.precision, expert.precision, expert.down_precision)
    rows = (expert.gate, expert.up, expert.down)
    return [*map(_of_blocks, rows, kinds), *(expert.biases or ())]


def _of_blocks(rows: Any, kind: Any) -> Tensor:
    from ktbench._kernels import PackedMatrix

    if rows.dtype == np.uint16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    matrix = PackedMatrix(len(rows), rows.shape[1] // BLOCK_BYTES[kind] * FORMATS[kind].group, kind)
    matrix.write_blocks(np.ascontiguousarray(rows))
    return torch.from_numpy(matrix.read())


def _require_close(seen: Tensor, expected: Tensor, what: str) -> None:
    """Not more than one rounding to bf16 apart."""
    assert seen.shape == expected.shape, f"{what} is {tuple(seen.shape)}, not {tuple(expected.shape)}"
    rounded = expected.bfloat16().float()
    wrong = ~torch.isclose(seen.float(), rounded, rtol=2**-7, atol=1e-37, equal_nan=True)
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} numbers are not those of the file"
