"""Reads a GGUF file into a network of Transformers; quantised weights stay as they are where the engine packs such."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import (
    Biases,
    Blocks,
    ExpertBlocks,
    ExpertMatrices,
    LinearRows,
    as_numpy,
    is_experts,
    read_form,
)
from ktbench.engine.gguf.families import TensorNames, expert_tensors, family_of
from ktbench.engine.gguf.header import EXPERTS, PRECISIONS, RECODED, GgufHeader, TensorInfo, TensorType, read_header
from ktbench.engine.gguf.recoded import recode
from ktbench.engine.loading.source import PLAIN, StoredExperts, WeightFilling, distinct_tensors, fill
from ktbench.engine.stored.blocks import block_numbers
from ktbench.engine.synthetic import skeleton
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import Precision, stands_for_all

_LAYER = re.compile(r"blk\.(\d+)\.")
_MATRICES = ("gate", "up", "down")
_PLAIN: Mapping[TensorType, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PIECE = 1 << 21  # numbers in float32 at a time: enough for all cores


class MappedWeights:
    """The tensors of a file; only the requested parts are read."""

    def __init__(self, header: GgufHeader) -> None:
        self.path, self.tensors = header.path, header.tensors
        self._bytes = [np.asarray(np.memmap(file, np.uint8, "r")) for file in (header.path, *header.following)]

    def info(self, name: str) -> TensorInfo:
        """Type and shape of a tensor. Raises ValueError where the file has none of this name."""
        if name not in self.tensors:
            raise ValueError(f"{self.path}: has no tensor {name}")
        return self.tensors[name]

    def read(self, name: str, index: int | None = None) -> Tensor:
        """A tensor, or its part `index` along the first dimension, in bf16; of type F32 as it is."""
        info, rows = self.info(name), self.rows(name)
        shape = info.shape if index is None else info.shape[1:]
        rows = (rows if index is None else rows[index]).reshape(-1, info.row_bytes)
        whole = torch.empty(len(rows), info.shape[-1], dtype=torch.float32 if info.kind == "F32" else torch.bfloat16)
        step = max(1, _PIECE // info.shape[-1])
        for row in range(0, len(rows), step):
            whole[row : row + step] = numbers(rows[row : row + step], info.kind)
        return whole.view(shape)

    def rows(self, name: str) -> Blocks:
        """The bytes of a tensor, by its dimensions but the last; a view of the file."""
        info = self.info(name)
        held = self._bytes[info.part]
        return held[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], info.row_bytes)

    def blocks(self, name: str, index: int | None = None) -> Blocks:
        """Those bytes, or the part `index` of them, as blocks of the tensor's precision."""
        rows, kind = self.rows(name), self.info(name).kind
        rows = rows if index is None else rows[index]
        return recode(rows, kind) if kind in RECODED else rows

    def rows_or_bits(self, name: str, index: int) -> Blocks:
        """Part `index` as blocks; plain numbers as their bits in bf16."""
        if self.format_of(name) == "bf16":
            return as_numpy(self.read(name, index).bfloat16())
        return self.blocks(name, index)

    def format_of(self, name: str) -> Precision:
        """The precision of which those bytes are blocks; bf16 for plain numbers."""
        return PRECISIONS.get(self.info(name).kind, "bf16")

    def formats(self, *, experts: bool) -> frozenset[Precision]:
        """Those of the tensors of its experts, or of all else. Files in super-blocks mix several."""
        return frozenset(self.format_of(name) for name in self.tensors if (EXPERTS in name) == experts)

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the file has no tensor of this name and shape."""
        if (held := self.info(name).shape) != shape:
            raise ValueError(f"{self.path}: tensor {name} is {held}, the model needs {shape}")


def numbers(rows: NDArray[np.uint8], kind: TensorType) -> Tensor:
    """[N, K] of the bytes of N rows: bf16 for BF16, else float32, which holds the numbers of other types exactly."""
    if kind in _PLAIN:
        return torch.from_numpy(rows.copy()).view(_PLAIN[kind]).to(torch.float32 if kind == "F16" else _PLAIN[kind])
    return block_numbers(recode(rows, kind) if kind in RECODED else rows, PRECISIONS[kind])


class GgufSource:
    """The `WeightSource` of a GGUF file.

    Raises ValueError naming a tensor that the file lacks, has in another shape, or that the network does not have; and
    as `read_header`.
    """

    def __init__(self, model: ModelSpec) -> None:
        assert model.path is not None
        self._weights = weights = MappedWeights(read_header(model.path))
        self.network, family = skeleton(model), family_of(model.config)
        self._config = self.network.config.to_dict()
        self.expert_formats: Collection[Precision] = weights.formats(experts=True)
        self._dense_formats = weights.formats(experts=False)
        self._mapped = {name: family.mapped(name) for name in distinct_tensors(self.network)}
        held = self.network.state_dict()
        for name, mapped in self._mapped.items():
            self._require(name, mapped, tuple(held[name].shape))
        self._experts = {name: read_form(module) for name, module in self.network.named_modules() if is_experts(module)}
        used = {name for mapped in self._mapped.values() for name in mapped.names}
        for name, form in self._experts.items():
            for tensor, shape in expert_tensors(name, form).values():
                weights.require(tensor, shape)
                used.add(tensor)
        self._require_all_used(used)

    def fill(self, filling: WeightFilling = PLAIN) -> None:
        fill(self.network, self._mapped, self.tensor, filling)

    def tensor(self, name: str) -> Tensor:
        """See `WeightSource`: in bf16, or in float32 where the file has it so."""
        mapped = self._mapped[name]
        return mapped.join([self._weights.read(one) for one in mapped.names], self._config)

    def linear(self, name: str, precision: Precision) -> LinearRows | None:
        """See `WeightSource`: a matrix in `precision`, or in any format where that stands for all of the file's."""
        mapped = self._mapped[name]
        kinds = {self._weights.format_of(one) for one in mapped.names}
        if not mapped.change.keeps_rows or len(kinds) > 1 or (kind := kinds.pop()) == "bf16":
            return None
        if kind != precision and not stands_for_all(precision, self._dense_formats):
            return None

        def read() -> Blocks:
            rows = [cast("Tensor", self._weights.blocks(name)) for name in mapped.names]
            return cast("Blocks", mapped.join(rows, self._config))

        return LinearRows(read, kind)

    def experts(self, name: str) -> StoredExperts:
        """See `WeightSource`. Blocks raise ValueError for gate and up, which share tiles, in two formats."""
        form, weights = self._experts[name], self._weights
        names = {field: tensor for field, (tensor, _) in expert_tensors(name, form).items()}
        places = [names[field] for field in _MATRICES]
        gate_kind, up_kind, down_kind = map(weights.format_of, places)

        def biases(i: int) -> Biases | None:
            return Biases(*(weights.read(names[f"{field}_bias"], i) for field in _MATRICES)) if form.biases else None

        def matrices(i: int) -> ExpertMatrices:
            gate, up, down = (weights.read(place, i).bfloat16() for place in places)
            return ExpertMatrices(gate=gate, up=up, down=down, biases=biases(i), glu=form.glu)

        def blocks(i: int) -> ExpertBlocks:
            if gate_kind != up_kind:
                raise ValueError(
                    f"{weights.path}: {names['gate']} is {gate_kind}, {names['up']} is {up_kind}: experts whose gate "
                    "and up are stored in two formats run in bf16, int8 and others that numbers are quantised to"
                )
            gate, up, down = (weights.rows_or_bits(place, i) for place in places)
            return ExpertBlocks(
                gate=gate, up=up, down=down, precision=gate_kind, down_precision=down_kind, biases=biases(i)
            )

        kinds = (gate_kind, up_kind, down_kind)
        return StoredExperts(matrices=matrices, blocks=None if set(kinds) == {"bf16"} else blocks, formats=kinds)

    def _require_all_used(self, used: Collection[str]) -> None:
        """Raise ValueError for a tensor of the file that is not `used`.

        Layers after the network's last predict further tokens, which Transformers leaves out as well.
        """
        for name in self._weights.tensors:
            layer = _LAYER.match(name)
            if name not in used and not (layer and int(layer[1]) >= self._config["num_hidden_layers"]):
                raise ValueError(f"{self._weights.path}: the model has no tensor for {name}")

    def _require(self, name: str, mapped: TensorNames, expected: tuple[int, ...]) -> None:
        shapes = [self._weights.info(one).shape for one in mapped.names]
        try:
            held = tuple(mapped.join([torch.empty(shape, device="meta") for shape in shapes], self._config).shape)
        except (RuntimeError, IndexError):  # sizes that do not divide
            held = ()
        if held != expected:
            tensors = ", ".join(f"{one} is {shape}" for one, shape in zip(mapped.names, shapes, strict=True))
            raise ValueError(f"{self._weights.path}: tensor {tensors}, the model needs {expected} in {name}")
