"""Reads a GGUF file into a network of Transformers; quantised weights stay as they are where the engine packs such."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.forms import (
    Biases,
    Blocks,
    ExpertBlocks,
    ExpertMatrices,
    LinearBlocks,
    LinearRows,
    PackableStore,
    is_experts,
    read_form,
)
from ktbench.engine.gguf.families import Family, TensorNames, expert_tensors, family_of
from ktbench.engine.gguf.header import EXPERTS, PRECISIONS, RECODED, GgufHeader, TensorInfo, TensorType, read_header
from ktbench.engine.gguf.recoded import recode
from ktbench.engine.synthetic import PLAIN, WeightFilling, distinct_tensors, fill, fill_experts, skeleton
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import BLOCK_BYTES, FORMATS, Precision, stands_for_all

_LAYER = re.compile(r"blk\.(\d+)\.")
_MATRICES = ("gate", "up", "down")
_SCALE_BYTES = 2
# What nibbles stand for: of Q4_0 a number raised by 8; kvalues_iq4nl and, in halves, kvalues_mxfp4 of ggml-common.h.
_Q4_0 = range(-8, 8)
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# Numbers in float32 at a time: they stay in cache.
_PIECE = 1 << 18


class PackedFormats:
    """Which matrices of a file are packed as they are stored.

    Files in super-blocks mix formats: where one of those is asked for, all are kept.
    """

    def __init__(self, stored: Collection[Precision]) -> None:
        self._stored = frozenset(stored)

    def mixed(self, precision: Precision) -> bool:
        """Whether a precision stands for all formats of the file."""
        return stands_for_all(precision, self._stored)

    def keeps(self, precision: Precision, *stored: Precision) -> bool:
        """Whether matrices in these formats are, where a precision is asked for."""
        return self.mixed(precision) or all(one == precision for one in stored)


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

    def format_of(self, name: str) -> Precision:
        """The precision of which those bytes are blocks; bf16 for plain numbers."""
        return PRECISIONS.get(self.info(name).kind, "bf16")

    def kept(self, *, experts: bool) -> PackedFormats:
        """Which matrices of its experts, or of all else, are packed as they are stored."""
        return PackedFormats({self.format_of(name) for name in self.tensors if (EXPERTS in name) == experts})

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the file has no tensor of this name and shape."""
        if (held := self.info(name).shape) != shape:
            raise ValueError(f"{self.path}: tensor {name} is {held}, the model needs {shape}")


def numbers(rows: NDArray[np.uint8], kind: TensorType) -> Tensor:
    """[N, K] of the bytes of N rows: bf16 for BF16, else float32, which holds the numbers of the other types exactly.

    A block has a scale d, in half precision or of MXFP4 a power of two, and 32 integers q, which stand for d·q
    (ggml-quants.c).
    """
    if kind in RECODED:
        rows = recode(rows, kind)
    decode = _DECODERS.get(kind)
    return _of_supers(rows, PRECISIONS[kind]) if decode is None else decode(torch.from_numpy(rows.copy()))


def _of_supers(rows: NDArray[np.uint8], precision: Precision) -> Tensor:
    """What super-blocks stand for, as the kernels that compute on them read them."""
    from ktbench._kernels import PackedMatrix  # base runs without the extension

    columns = rows.shape[1] // BLOCK_BYTES[precision] * FORMATS[precision].group
    matrix = PackedMatrix(len(rows), columns, precision)
    matrix.write_blocks(np.ascontiguousarray(rows))
    return torch.from_numpy(matrix.read())


def _q8_0(rows: Tensor) -> Tensor:
    blocks = rows.view(-1, BLOCK_BYTES["q8_0"])
    return _scaled(blocks, blocks[:, _SCALE_BYTES:].view(torch.int8)).view(len(rows), -1)


def _nibbles(values: Iterable[int]) -> Callable[[Tensor], Tensor]:
    table = torch.tensor(list(values), dtype=torch.float32)
    return lambda rows: _of_halves(rows, table)


def _of_halves(rows: Tensor, table: Tensor) -> Tensor:
    blocks = rows.view(-1, BLOCK_BYTES["q4_0"])
    return _scaled(blocks, _looked_up(blocks[:, _SCALE_BYTES:], table)).view(len(rows), -1)


def _looked_up(pairs: Tensor, table: Tensor) -> Tensor:
    """The low halves of the bytes are the first 16 weights, the high halves the rest."""
    return table[torch.cat([pairs & 15, pairs >> 4], dim=1).int()]


def _mxfp4(rows: Tensor) -> Tensor:
    """The powers of two are e8m0's (OCP Microscaling Formats, 5.4.1): 255 is NaN."""
    blocks = rows.view(-1, BLOCK_BYTES["mxfp4"])
    powers = blocks[:, :1]
    scales = torch.ldexp(torch.ones(len(blocks), 1), powers.int() - 128).masked_fill(powers == 255, torch.nan)
    return (scales * _looked_up(blocks[:, 1:], torch.tensor(E2M1, dtype=torch.float32))).view(len(rows), -1)


def _scaled(blocks: Tensor, integers: Tensor) -> Tensor:
    return integers.float() * blocks[:, :_SCALE_BYTES].contiguous().view(torch.float16).float()


_DECODERS: Mapping[TensorType, Callable[[Tensor], Tensor]] = {
    "F32": lambda rows: rows.view(torch.float32),
    "F16": lambda rows: rows.view(torch.float16).float(),
    "BF16": lambda rows: rows.view(torch.bfloat16),
    "Q8_0": _q8_0,
    "Q5_0": _q8_0,
    "Q4_0": _nibbles(_Q4_0),
    "IQ4_NL": _nibbles(_IQ4_NL),
    "MXFP4": _mxfp4,
}


class Lookup:
    """Where a file has the tensors of a network, by their names there; tied tensors have one entry.

    Raises ValueError naming a tensor that the file lacks, or has in another shape than the network.
    """

    def __init__(self, network: PreTrainedModel, family: Family, weights: MappedWeights) -> None:
        self._config, self._weights = network.config.to_dict(), weights
        self._kept = weights.kept(experts=False)
        self.mapped = {name: family.mapped(name) for name in distinct_tensors(network)}
        held = network.state_dict()
        for name, mapped in self.mapped.items():
            self._require(name, mapped, tuple(held[name].shape))

    def read(self, name: str) -> Tensor:
        """A tensor of the network in bf16; what the file has in float32 in that."""
        mapped = self.mapped[name]
        return mapped.join([self._weights.read(one) for one in mapped.names], self._config)

    def blocks(self, name: str, precision: Precision) -> LinearRows | None:
        """The rows of a matrix of the network where they are packed as the blocks that the file has."""
        mapped = self.mapped[name]
        found = {self._weights.format_of(one) for one in mapped.names}
        if not mapped.change.keeps_rows or len(found) > 1 or not self._kept.keeps(precision, stored := found.pop()):
            return None
        rows = [cast("Tensor", self._weights.blocks(one)) for one in mapped.names]
        return None if stored == "bf16" else LinearRows(cast("Blocks", mapped.join(rows, self._config)), stored)

    def require_all_used(self, others: Collection[str]) -> None:
        """Raise ValueError for a tensor of the file that is neither here nor one of `others`.

        Layers after the network's last predict further tokens, which Transformers leaves out as well.
        """
        used = {name for mapped in self.mapped.values() for name in mapped.names} | set(others)
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
            found = ", ".join(f"{one} is {shape}" for one, shape in zip(mapped.names, shapes, strict=True))
            raise ValueError(f"{self._weights.path}: tensor {found}, the model needs {expected} in {name}")


class StoredExperts:
    """The experts of one experts module, which may be on `meta`.

    Raises ValueError for a file that lacks one of their tensors, or has it in another shape.
    """

    def __init__(self, module: nn.Module, name: str, weights: MappedWeights) -> None:
        self.form, self._weights, self._kept = read_form(module), weights, weights.kept(experts=True)
        tensors = expert_tensors(name, self.form)
        self.names = {field: tensor for field, (tensor, _) in tensors.items()}
        for tensor, shape in tensors.values():
            weights.require(tensor, shape)

    def matrices(self, i: int) -> ExpertMatrices:
        """Expert `i` in bf16."""
        gate, up, down = (self._weights.read(self.names[field], i) for field in _MATRICES)
        return ExpertMatrices(gate=gate, up=up, down=down, biases=self._biases(i), glu=self.form.glu)

    def blocks(self, i: int) -> ExpertBlocks:
        """Expert `i` as it lies in the file, for matrices that `pack_as` a precision."""
        gate, up, down = (self._rows(self.names[field], i) for field in _MATRICES)
        precision, _, down_precision = self.formats
        return ExpertBlocks(
            gate=gate, up=up, down=down, precision=precision, down_precision=down_precision, biases=self._biases(i)
        )

    def _rows(self, name: str, i: int) -> Blocks:
        plain = self._weights.format_of(name) == "bf16"
        return self._weights.read(name, i).view(torch.uint16).numpy() if plain else self._weights.blocks(name, i)

    def _biases(self, i: int) -> Biases | None:
        if not self.form.biases:
            return None
        return Biases(*(self._weights.read(self.names[f"{field}_bias"], i) for field in _MATRICES))

    @property
    def formats(self) -> tuple[Precision, Precision, Precision]:
        """Those of gate, up and down."""
        gate, up, down = (self._weights.format_of(self.names[field]) for field in _MATRICES)
        return gate, up, down

    def pack_as(self, precision: Precision) -> bool:
        """Whether the matrices are packed as they are stored: gate and up, which share tiles, in one format.

        Raises ValueError where they would have to be and are in two.
        """
        gate, up, down = self.formats
        if gate != up and self._kept.mixed(precision):
            raise ValueError(
                f"{self._weights.path}: {self.names['gate']} is {gate}, {self.names['up']} is {up}: experts whose gate "
                "and up are stored in two formats run in bf16, int8 and others that numbers are quantised to"
            )
        return self._kept.keeps(precision, gate, up, down)


class GgufModel:
    """The network of a file, all weights in bf16 but its routed experts, which stay on `meta` until `experts`.

    Raises ValueError naming a tensor that the file lacks, has in another shape, or that the network does not have;
    and as `read_header`.
    """

    def __init__(self, model: ModelSpec, holding: WeightPlan, filling: WeightFilling = PLAIN) -> None:
        assert model.path is not None
        weights = MappedWeights(read_header(model.path))
        self.network, self._holding = skeleton(model), holding
        self._lookup = Lookup(self.network, family_of(model.config), weights)
        self._experts = {
            name: StoredExperts(module, name, weights)
            for name, module in self.network.named_modules()
            if is_experts(module)
        }
        self._lookup.require_all_used([name for experts in self._experts.values() for name in experts.names.values()])
        fill(self.network, self._lookup.mapped, self._lookup.read, filling)
        self._linears = linear_names(self.network)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._experts[name], self._holding.packing
        if self._holding.original:
            fill_experts(module, stored.matrices)
        return stored.blocks if packing is not None and stored.pack_as(packing.precision) else stored.matrices

    @property
    def linear_blocks(self) -> LinearBlocks | None:
        """How linear layers are packed as they lie in the file; None where none is stored in their precision."""
        return self.blocks if any(self.blocks(module) is not None for module in self._linears) else None

    def blocks(self, module: nn.Module) -> LinearRows | None:
        """The rows of a linear layer where the file has them in a precision that linear layers are packed in."""
        name, precision = self._linears.get(module), self._holding.dense
        return None if name is None or precision is None else self._lookup.blocks(name, precision)


def linear_names(network: PreTrainedModel) -> WeakKeyDictionary[nn.Module, str]:
    """Names of the weights of linear layers. It does not keep alive what has been packed."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    linears = (module for module in network.modules() if isinstance(module, nn.Linear))
    return WeakKeyDictionary((module, names[id(module.weight)]) for module in linears)
