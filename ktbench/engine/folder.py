"""Folders of safetensors, read tensor by tensor: what is packed is never in memory as a whole before.

Routed experts come stacked as in memory, or separately as on the Hub. Any matrix may be quantised
(`ktbench.engine.stored`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import is_extra, stored_weights
from ktbench.engine.forms import (
    Biases,
    Blocks,
    ExpertBlocks,
    ExpertMatrices,
    ExpertsForm,
    ExpertStore,
    LinearBlocks,
    LinearRows,
    PackableStore,
    is_experts,
    read_form,
)
from ktbench.engine.gguf.reading import linear_names
from ktbench.engine.stored.blocks import as_blocks, blocks_of, numbers_of
from ktbench.engine.stored.matrices import StoredWeights
from ktbench.engine.synthetic import PLAIN, WeightFilling, distinct_tensors, fill, fill_experts, skeleton
from ktbench.engine.weight_plan import WeightPlan
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import Precision, stands_for_all

# Of models that see images, too.
_PREFIX = "language_model."
# Mixtral's block goes by another name on the Hub, and so do its projections: gate, up, down.
_BLOCK, _OTHER_BLOCK = ".mlp.", ".block_sparse_moe."
_PROJECTIONS = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_STACKED = ("gate_up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredExperts:
    """The routed experts of one layer: expert `i` in bf16, and as blocks of `format` where all are stored in such."""

    matrices: ExpertStore
    blocks: Callable[[int], ExpertBlocks] | None = None
    format: Precision = "bf16"


class Folder:
    """The tensors of a network in a folder; only the requested parts are read.

    Raises ValueError for a tensor that is missing or has another shape than the network's, and as `blocks_of`.
    """

    def __init__(self, path: str, network: PreTrainedModel, weights: StoredWeights) -> None:
        self._path, self._network, self._weights = path, network, weights
        self._exact: tuple[str, ...] = tuple(getattr(network, "_keep_in_fp32_modules_strict", None) or ())
        files: dict[Path, Any] = {
            file: safe_open(file, "pt") for file in {one.file for one in weights.tensors.values()}
        }
        self._stored = {name.removeprefix(_PREFIX): (files[one.file], name) for name, one in weights.tensors.items()}
        self._matrices = {name.removeprefix(_PREFIX): matrix for name, matrix in weights.matrices.items()}
        self._used: set[str] = set()

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts. A tied head is the embedding."""
        exact = any(part in name for part in self._exact)
        return self._numbers(self._place(name)).to(torch.float32 if exact else torch.bfloat16, copy=True)

    def is_in(self, name: str, kind: str) -> bool:
        """Whether a matrix of the network is stored in whole blocks of format `kind`."""
        matrix = self._matrices.get(self._place(name))
        return matrix is not None and matrix.format == kind and matrix.is_whole

    def blocks(self, name: str) -> Blocks:
        """The rows of a matrix that `is_in` a format of blocks."""
        return self._blocks(self._place(name))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the folder has no such tensor of the network, or in another shape."""
        self._require(self._place(name), shape)

    def require_all_used(self) -> None:
        """Raise ValueError for a tensor that none of the calls before has asked for."""
        parts = {
            part for place in self._used if place in self._matrices for part in self._matrices[place].parts.values()
        }
        unknown = sorted(self._stored.keys() - self._used - {part.removeprefix(_PREFIX) for part in parts})
        layers = self._network.config.get_text_config().num_hidden_layers
        idle = (self._weights.is_beside, lambda name: is_extra(name, layers), self._is_idle_bias)
        if unknown := [one for one in unknown if not any(is_idle(one) for is_idle in idle)]:
            name = type(self._network).__name__
            raise ValueError(
                f"model.path={self._path}: {name} has no place for {unknown[0]} and {len(unknown) - 1} others"
            )

    def _is_idle_bias(self, name: str) -> bool:
        """AutoGPTQ gives every linear layer a bias, of zeros where the model has none."""
        owner, _, last = name.rpartition(".")
        matrix = self._matrices.get(f"{owner}.weight")
        return last == "bias" and matrix is not None and matrix.layout == "gptq" and not self._read(name).any()

    def experts(self, name: str) -> StoredExperts:
        """The routed experts of module `name`, one at a time."""
        module = self._network.get_submodule(name)
        form, shapes = read_form(module), {key: tuple(held.shape) for key, held in module.named_parameters()}
        if self._has(f"{name}.{_STACKED[0]}"):
            return self._stacked(name, form, shapes)
        return self._separate(name, form)

    def _stacked(self, name: str, form: ExpertsForm, shapes: Mapping[str, tuple[int, ...]]) -> StoredExperts:
        """As in memory. MXFP4 lies by output rows, whichever way the family holds its matrices."""
        matrices = {key: self._matrices.get(f"{name}.{key}") for key in _STACKED}
        turned = {key for key, one in matrices.items() if form.transposed and one and one.layout == "mxfp4"}
        for key, (first, *rest) in shapes.items():
            self._require(f"{name}.{key}", (first, *(reversed(rest) if key in turned else rest)))

        def part(key: str, i: int) -> Tensor:
            numbers = self._numbers(f"{name}.{key}", i).to(torch.bfloat16)
            return numbers.T if key in turned else numbers

        def blocks(i: int) -> ExpertBlocks:
            both, down = (torch.from_numpy(self._blocks(f"{name}.{key}", i)) for key in _STACKED)
            gate, up = map(as_blocks, form.halves(both))
            return _packed(gate, up, down.numpy(), kind, self._biases(name, form, i))

        kind = self._common([f"{name}.{key}" for key in _STACKED])
        by_rows = not form.transposed or len(turned) == len(_STACKED)
        kept = kind != "bf16" and by_rows
        return StoredExperts(
            matrices=lambda i: form.split({key: part(key, i) for key in shapes}),
            blocks=blocks if kept else None,
            format=kind if kept else "bf16",
        )

    def _separate(self, name: str, form: ExpertsForm) -> StoredExperts:
        """Each matrix is a tensor of its own."""
        shapes = {"gate": (form.ffn, form.hidden), "up": (form.ffn, form.hidden), "down": (form.hidden, form.ffn)}
        owners = (name, name.replace(_BLOCK, _OTHER_BLOCK))
        places = [
            {
                field: self._first(*(f"{owner}.{i}.{word}.weight" for owner in owners for word in words))
                for field, words in _PROJECTIONS.items()
            }
            for i in range(form.experts)
        ]
        for place in places:
            for field, stored in place.items():
                self._require(stored, shapes[field])
        kind = self._common([stored for place in places for stored in place.values()])

        def matrices(i: int) -> ExpertMatrices:
            gate, up, down = (self._numbers(stored).to(torch.bfloat16) for stored in places[i].values())
            return ExpertMatrices(gate=gate, up=up, down=down, glu=form.glu)

        def blocks(i: int) -> ExpertBlocks:
            gate, up, down = map(self._blocks, places[i].values())
            return _packed(gate, up, down, kind)

        return StoredExperts(matrices=matrices, blocks=None if kind == "bf16" else blocks, format=kind)

    def _biases(self, name: str, form: ExpertsForm, i: int) -> Biases | None:
        if not form.biases:
            return None
        both, down = (self._read(f"{name}.{key}_bias", i).to(torch.bfloat16) for key in _STACKED)
        return Biases(*form.halves(both), down)

    def _numbers(self, place: str, i: int | None = None) -> Tensor:
        """A tensor, or its part `i`; of a quantised matrix what it stands for, float32."""
        if place in self._matrices:
            return numbers_of(self._matrices[place], lambda name: self._read(name, i))
        return self._read(place, i)

    def _blocks(self, place: str, i: int | None = None) -> Blocks:
        return as_blocks(blocks_of(self._matrices[place], lambda name: self._read(name, i)))

    def _read(self, name: str, i: int | None = None) -> Tensor:
        file, stored = self._stored[name.removeprefix(_PREFIX)]
        read: Tensor = file.get_tensor(stored) if i is None else file.get_slice(stored)[i]
        return read

    def _has(self, name: str) -> bool:
        return name in self._stored or name in self._matrices

    def _common(self, places: Iterable[str]) -> Precision:
        """The format in whose whole blocks all are stored; bf16 where there is none."""
        held = (self._matrices.get(one) for one in places)
        found: set[Precision] = {one.format if one is not None and one.is_whole else "bf16" for one in held}
        return found.pop() if len(found) == 1 else "bf16"

    def _place(self, name: str) -> str:
        return self._first(name, name.replace(_BLOCK, _OTHER_BLOCK), *((_EMBEDDING,) if name == _HEAD else ()))

    def _first(self, *names: str) -> str:
        """The first of the names that the folder has."""
        found = next((name for name in names if self._has(name)), None)
        if found is None:
            raise ValueError(f"model.path={self._path}: no weights for {names[0]}")
        self._used.add(found)
        return found

    def _require(self, stored: str, shape: tuple[int, ...]) -> None:
        place = self._first(stored)
        held = (self._matrices.get(place) or self._weights.tensors[self._stored[place][1]]).shape
        if held != shape:
            raise ValueError(f"model.path={self._path}: tensor {stored} is {held}, the model needs {shape}")


def _packed(gate: Blocks, up: Blocks, down: Blocks, kind: Precision, biases: Biases | None = None) -> ExpertBlocks:
    return ExpertBlocks(gate=gate, up=up, down=down, precision=kind, down_precision=kind, biases=biases)


def _in_bf16(expert: ExpertMatrices) -> ExpertBlocks:
    """An expert that is packed in bf16 whatever others are."""
    gate, up, down = (
        matrix.contiguous().view(torch.uint16).numpy() for matrix in (expert.gate, expert.up, expert.down)
    )
    return _packed(gate, up, down, "bf16", expert.biases)


class FolderModel:
    """The network of a folder, all weights in bf16 but its routed experts, which stay on `meta` until `experts`.

    Raises ValueError as `Folder`, and for a tensor that has no place.
    """

    def __init__(self, model: ModelSpec, weights: StoredWeights, holding: WeightPlan, filling: WeightFilling) -> None:
        assert model.path is not None
        self.network, self._holding = skeleton(model), holding
        self._folder = Folder(model.path, self.network, weights)
        self._experts = {
            name: self._folder.experts(name) for name, module in self.network.named_modules() if is_experts(module)
        }
        held, names = self.network.state_dict(), distinct_tensors(self.network)
        for name in names:
            self._folder.require(name, tuple(held[name].shape))
        self._folder.require_all_used()
        fill(self.network, names, self._folder.tensor, filling)
        self._linears = linear_names(self.network)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._experts[name], self._holding.packing
        if self._holding.original:
            fill_experts(module, stored.matrices)
        if packing is None:
            return stored.matrices
        keeps_all = stands_for_all(packing.precision, {one.format for one in self._experts.values()})
        if stored.blocks is None:
            return (lambda i: _in_bf16(stored.matrices(i))) if keeps_all else stored.matrices
        return stored.blocks if keeps_all or stored.format == packing.precision else stored.matrices

    @property
    def linear_blocks(self) -> LinearBlocks | None:
        """How linear layers are packed as they are stored; None where none is stored in their precision."""
        return self.blocks if any(map(self._is_stored, self._linears.values())) else None

    def blocks(self, module: nn.Module) -> LinearRows | None:
        """The rows of a linear layer where the folder has them in the precision that linear layers are packed in."""
        name, precision = self._linears.get(module), self._holding.dense
        if name is None or precision is None or not self._is_stored(name):
            return None
        return LinearRows(self._folder.blocks(name), precision)

    def _is_stored(self, name: str) -> bool:
        return self._holding.dense is not None and self._folder.is_in(name, self._holding.dense)


def open_folder(model: ModelSpec, holding: WeightPlan, filling: WeightFilling = PLAIN) -> FolderModel | None:
    """The network of a folder; None where its tensors have names that only Transformers knows, or are not whole, and
    where an adapter is merged into them, for which all have to be there.

    Raises ValueError as `stored_weights`; quantised weights are read here or not at all.
    """
    assert model.path is not None
    weights = stored_weights(model.path)
    if model.adapter is not None:
        return None
    try:
        return FolderModel(model, weights, holding, filling)
    except ValueError:
        if weights.is_quantised:
            raise
        return None
