"""What a GGUF file of a network will hold, and where, before any weight is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.forms import ExpertsForm, is_experts, read_form
from ktbench.engine.gguf.changes import Config
from ktbench.engine.gguf.families import Family, Mapped
from ktbench.engine.gguf.names import GgufType, Kind, expert_names
from ktbench.engine.gguf.tensors import TensorInfo
from ktbench.spec.weights import BLOCK

ALIGNMENT = 32
_QUANTISED = ("Q8_0", "Q4_0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Types:
    """In what routed experts and all other matrices are written."""

    experts: GgufType
    dense: GgufType

    def of(self, kind: Kind) -> GgufType | Literal["F32"]:
        """The type of a tensor outside of routed experts."""
        if kind == "exact":
            return "F32"
        half: GgufType = "F16" if self.dense == "F16" else "BF16"
        return half if kind == "half" else self.dense


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A tensor of the network outside of its routed experts."""

    name: str
    mapped: Mapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of one layer: `names` in the file by field of `ExpertMatrices`."""

    name: str
    count: int
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`parts` of the network in its order, and `tensors` of the file by name, at offsets from where its data begin."""

    parts: tuple[Whole | Experts, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def data_bytes(self) -> int:
        """Of all tensors with what aligns them."""
        last = list(self.tensors.values())[-1]
        return aligned(last.offset + last.nbytes)


def plan_file(network: PreTrainedModel, family: Family, config: Config, types: Types) -> Plan:
    """The file of a network, which may be on `meta`.

    Raises ValueError for a tensor that llama.cpp lacks, and for rows that are no whole number of blocks.
    """
    experts = {name: module for name, module in network.named_modules() if is_experts(module)}
    parts: dict[str, Whole | Experts] = {}
    infos: list[TensorInfo] = []
    for key, tensor in network.state_dict().items():
        if (owner := key.rpartition(".")[0]) not in experts:
            mapped = family.mapped(key)
            parts[key] = Whole(name=key, mapped=mapped)
            split = mapped.split(tensor.to("meta"), config)
            infos += [_info(name, types.of(mapped.kind), tuple(one.shape)) for name, one in split.items()]
        elif owner not in parts:
            form = read_form(experts[owner])
            parts[owner] = part = Experts(name=owner, count=form.experts, names=_names(owner, form))
            infos += _expert_infos(part, experts[owner], form, types)
    return Plan(parts=tuple(parts.values()), tensors={info.name: info for info in _in_line(infos)})


def _names(module: str, form: ExpertsForm) -> dict[str, str]:
    return {field: name for field, name in expert_names(module).items() if form.biases or "bias" not in field}


def _expert_infos(part: Experts, module: nn.Module, form: ExpertsForm, types: Types) -> Iterator[TensorInfo]:
    first = form.split({name: torch.empty_like(one[0], device="meta") for name, one in module.named_parameters()})
    for field, name in part.names.items():
        kind = "F32" if "bias" in field else types.experts
        yield _info(name, kind, (form.experts, *getattr(first, field).shape))


def _info(name: str, kind: GgufType | Literal["F32"], shape: tuple[int, ...]) -> TensorInfo:
    if kind in _QUANTISED and shape[-1] % BLOCK:
        raise ValueError(f"{name} as {kind}: rows of {shape[-1]} weights, must be a multiple of {BLOCK}")
    return TensorInfo(name=name, kind=kind, shape=shape, offset=0)


def _in_line(infos: list[TensorInfo]) -> Iterator[TensorInfo]:
    offset = 0
    for info in infos:
        yield replace(info, offset=offset)
        offset = aligned(offset + info.nbytes)


def aligned(offset: int) -> int:
    """The next place where a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
