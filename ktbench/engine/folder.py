"""Folders of safetensors, read tensor by tensor: what is packed is never in memory as a whole before.

Routed experts come stacked as in memory, separately as on the Hub, or in MXFP4 as gpt-oss is released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint, is_extra, is_mxfp4, weight_files
from ktbench.engine.forms import (
    Biases,
    Blocks,
    ExpertBlocks,
    ExpertMatrices,
    ExpertsForm,
    ExpertStore,
    PackableStore,
    is_experts,
    read_form,
)
from ktbench.engine.gguf.reading import numbers
from ktbench.engine.synthetic import PLAIN, Filling, distinct_tensors, fill, fill_experts, skeleton
from ktbench.engine.weight_plan import WeightPlan
from ktbench.resources import checkpoint_folder
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import BLOCK

# Of models that see images, too.
_PREFIX = "language_model."
# Mixtral's block goes by another name on the Hub, and so do its projections: gate, up, down.
_BLOCK, _OTHER_BLOCK = ".mlp.", ".block_sparse_moe."
_PROJECTIONS = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_BLOCKS, _SCALES = "_blocks", "_scales"
_NAN = 255  # of e8m0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredExperts:
    """The routed experts of one layer: expert `i` in bf16, and as blocks of MXFP4 where it is stored in these."""

    matrices: ExpertStore
    blocks: Callable[[int], ExpertBlocks] | None = None


class Folder:
    """The tensors of a network in a folder; only the requested parts are read.

    Raises ValueError for a tensor that is missing or has another shape than the network's.
    """

    def __init__(self, path: Path, network: PreTrainedModel) -> None:
        self._path, self._network = path, network
        self._exact: tuple[str, ...] = tuple(getattr(network, "_keep_in_fp32_modules_strict", None) or ())
        files: list[Any] = [safe_open(file, "pt") for file in weight_files(path)]
        self._stored = {name.removeprefix(_PREFIX): (file, name) for file in files for name in file.keys()}  # noqa: SIM118
        self._used: set[str] = set()

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts. A tied head is the embedding."""
        exact = any(part in name for part in self._exact)
        file, stored = self._stored[self._place(name)]
        whole: Tensor = file.get_tensor(stored)
        return whole.to(torch.float32 if exact else torch.bfloat16, copy=True)

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the folder has no such tensor of the network, or in another shape."""
        self._require(self._place(name), shape)

    def require_all_used(self) -> None:
        """Raise ValueError for a tensor that none of the calls before has asked for."""
        unknown = sorted(self._stored.keys() - self._used)
        if unknown := [name for name in unknown if not is_extra(name, self._network.config)]:
            name = type(self._network).__name__
            raise ValueError(
                f"model.path={self._path}: {name} has no place for {unknown[0]} and {len(unknown) - 1} others"
            )

    def experts(self, name: str) -> StoredExperts:
        """The routed experts of module `name`, one at a time."""
        module = self._network.get_submodule(name)
        form, shapes = read_form(module), {key: tuple(held.shape) for key, held in module.named_parameters()}
        first = next(iter(shapes))
        if f"{name}.{first}{_BLOCKS}" in self._stored:
            return self._mxfp4(name, form)
        if f"{name}.{first}" not in self._stored:
            return self._separate(name, form)
        for key, shape in shapes.items():
            self._require(f"{name}.{key}", shape)
        return StoredExperts(matrices=lambda i: form.split({key: self._part(f"{name}.{key}", i) for key in shapes}))

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

        def matrices(i: int) -> ExpertMatrices:
            gate, up, down = (self._slice(places[i][field])[:].to(torch.bfloat16) for field in _PROJECTIONS)
            return ExpertMatrices(gate=gate, up=up, down=down, glu=form.glu)

        return StoredExperts(matrices=matrices)

    def _mxfp4(self, name: str, form: ExpertsForm) -> StoredExperts:
        """A matrix is `NAME_blocks` [E, N, K / 32, 16], two codes of e2m1 a byte, the first in the low half.

        `NAME_scales` [E, N, K / 32] are e8m0.
        """
        for matrix, rows, columns in (
            ("gate_up_proj", 2 * form.ffn, form.hidden),
            ("down_proj", form.hidden, form.ffn),
        ):
            shape = (form.experts, rows, columns // BLOCK)
            self._require(f"{name}.{matrix}{_BLOCKS}", (*shape, BLOCK // 2))
            self._require(f"{name}.{matrix}{_SCALES}", shape)
            if form.biases:
                self._require(f"{name}.{matrix}_bias", shape[:2])

        def blocks(i: int) -> ExpertBlocks:
            halves, down = form.halves(self._rows(f"{name}.gate_up_proj", i)), self._rows(f"{name}.down_proj", i)
            gate, up, down_blocks = (_contiguous(rows) for rows in (*halves, down))
            return ExpertBlocks(gate=gate, up=up, down=down_blocks, biases=self._biases(name, form, i))

        def matrices(i: int) -> ExpertMatrices:
            stored = blocks(i)
            gate, up, down = (numbers(rows, "MXFP4").bfloat16() for rows in (stored.gate, stored.up, stored.down))
            return ExpertMatrices(gate=gate, up=up, down=down, biases=stored.biases, glu=form.glu)

        return StoredExperts(matrices=matrices, blocks=blocks)

    def _rows(self, name: str, i: int) -> Tensor:
        """[N, K / 32 · 17]: a block is its scale, then 16 bytes with k in the low half and k + 16 in the high one."""
        pairs, scales = (self._slice(name + what)[i] for what in (_BLOCKS, _SCALES))
        if (scales == _NAN).any():
            raise ValueError(f"model.path={self._path}: {name}{_SCALES}: expert {i} has a scale that is not a number")
        codes = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)
        first, second = codes[..., : BLOCK // 2], codes[..., BLOCK // 2 :]
        return torch.cat([scales[..., None], first | second << 4], dim=-1).flatten(-2)

    def _biases(self, name: str, form: ExpertsForm, i: int) -> Biases | None:
        if not form.biases:
            return None
        both, down = (self._part(f"{name}.{matrix}_bias", i) for matrix in ("gate_up_proj", "down_proj"))
        return Biases(*form.halves(both), down)

    def _part(self, name: str, i: int) -> Tensor:
        part: Tensor = self._slice(name)[i]
        return part.to(torch.bfloat16)

    def _slice(self, name: str) -> Any:
        file, stored = self._stored[name]
        return file.get_slice(stored)

    def _place(self, name: str) -> str:
        return self._first(name, name.replace(_BLOCK, _OTHER_BLOCK), *((_EMBEDDING,) if name == _HEAD else ()))

    def _first(self, *names: str) -> str:
        """The first of the names that the folder has."""
        found = next((name for name in names if name in self._stored), None)
        if found is None:
            raise ValueError(f"model.path={self._path}: no weights for {names[0]}")
        self._used.add(found)
        return found

    def _require(self, stored: str, shape: tuple[int, ...]) -> None:
        if (held := tuple(self._slice(self._first(stored)).get_shape())) != shape:
            raise ValueError(f"model.path={self._path}: tensor {stored} is {held}, the model needs {shape}")


def _contiguous(rows: Tensor) -> Blocks:
    blocks: Blocks = rows.contiguous().numpy()
    return blocks


class FolderModel:
    """The network of a folder, all weights in bf16 but its routed experts, which stay on `meta` until `experts`.

    Raises ValueError as `inspect_checkpoint`, and for a tensor that is missing, has another shape or has no place.
    """

    def __init__(self, model: ModelSpec, holding: WeightPlan, filling: Filling) -> None:
        assert model.path is not None
        inspect_checkpoint(model.path)
        self.network, self._holding = skeleton(model), holding
        folder = Folder(checkpoint_folder(model.path), self.network)
        self._experts = {
            name: folder.experts(name) for name, module in self.network.named_modules() if is_experts(module)
        }
        held, names = self.network.state_dict(), distinct_tensors(self.network)
        for name in names:
            folder.require(name, tuple(held[name].shape))
        folder.require_all_used()
        fill(self.network, names, folder.tensor, filling)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._experts[name], self._holding.packing
        if self._holding.original:
            fill_experts(module, stored.matrices)
        packs_blocks = stored.blocks is not None and packing is not None and packing.precision == "mxfp4"
        return stored.blocks if packs_blocks else stored.matrices  # type: ignore[return-value]


def open_folder(model: ModelSpec, holding: WeightPlan, filling: Filling = PLAIN) -> FolderModel | None:
    """The network of a folder; None where its tensors have names that only Transformers knows, or are not whole."""
    try:
        return FolderModel(model, holding, filling)
    except ValueError:
        if model.path is not None and is_mxfp4(model.path):
            raise
        return None
