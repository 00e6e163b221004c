"""Folders whose routed experts are in MXFP4, as gpt-oss is released: packed as they are, without a copy in bf16."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ktbench.engine.checkpoint import inspect_checkpoint, is_beyond, weight_files
from ktbench.engine.forms import Biases, Blocks, ExpertBlocks, ExpertMatrices, PackableStore, is_experts, read_form
from ktbench.engine.gguf.reading import numbers
from ktbench.engine.synthetic import distinct_tensors, fill, fill_experts, skeleton
from ktbench.engine.weight_plan import WeightPlan
from ktbench.resources import checkpoint_folder
from ktbench.spec.run_spec import ModelSpec
from ktbench.spec.weights import BLOCK

_NAN = 255  # of e8m0


class Folder:
    """The tensors of a folder of safetensors; only the requested parts are read."""

    def __init__(self, path: Path) -> None:
        self._files: dict[str, Any] = {}
        for file in weight_files(path):
            opened: Any = safe_open(file, framework="pt")
            self._files |= dict.fromkeys(opened.keys(), opened)
        self._path = path

    def read(self, name: str) -> Tensor:
        """A tensor in its type. Raises ValueError where there is none of this name."""
        whole: Tensor = self._part(name)[:]
        return whole

    def row(self, name: str, index: int) -> Tensor:
        """Its part `index` along the first dimension."""
        part: Tensor = self._part(name)[index]
        return part

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where there is no tensor of this name and shape."""
        if (held := tuple(self._part(name).get_shape())) != shape:
            raise ValueError(f"{self._path}: tensor {name} is {held}, the model needs {shape}")

    def require_all_used(self, names: Collection[str], owners: tuple[str, ...], layers: int) -> None:
        """Raise ValueError for a tensor of the first `layers` that is neither one of `names` nor of an owner."""
        for name in sorted(self._files.keys() - set(names)):
            if not name.startswith(owners) and not is_beyond(name, layers):
                raise ValueError(f"{self._path}: the model has no place for {name}")

    def _part(self, name: str) -> Any:
        if name not in self._files:
            raise ValueError(f"{self._path}: has no tensor {name}")
        return self._files[name].get_slice(name)


class Mxfp4Experts:
    """The experts of one experts module, which may be on `meta`.

    A matrix is `NAME_blocks` [E, N, K / 32, 16], two codes of e2m1 a byte, the first in the low half, and `NAME_scales`
    [E, N, K / 32], e8m0. Raises ValueError where one is missing or has another shape.
    """

    def __init__(self, module: nn.Module, name: str, folder: Folder) -> None:
        self.form, self._name, self._folder = read_form(module), name, folder
        experts, hidden, ffn = self.form.experts, self.form.hidden, self.form.ffn
        for matrix, rows, columns in (("gate_up_proj", 2 * ffn, hidden), ("down_proj", hidden, ffn)):
            folder.require(f"{name}.{matrix}_blocks", (experts, rows, columns // BLOCK, BLOCK // 2))
            if self.form.biases:
                folder.require(f"{name}.{matrix}_bias", (experts, rows))

    def blocks(self, i: int) -> ExpertBlocks:
        """Expert `i` as blocks of GGUF's MXFP4, which hold the same numbers in another order."""
        halves = self.form.halves(self._rows("gate_up_proj", i))
        gate, up, down = (_contiguous(rows) for rows in (*halves, self._rows("down_proj", i)))
        return ExpertBlocks(gate=gate, up=up, down=down, biases=self._biases(i))

    def matrices(self, i: int) -> ExpertMatrices:
        """Expert `i` in bf16, which holds the numbers exactly."""
        blocks = self.blocks(i)
        gate, up, down = (numbers(rows, "MXFP4").bfloat16() for rows in (blocks.gate, blocks.up, blocks.down))
        return ExpertMatrices(gate=gate, up=up, down=down, biases=blocks.biases, glu=self.form.glu)

    def _rows(self, matrix: str, i: int) -> Tensor:
        """[N, K / 32 · 17]: a block is its scale, then 16 bytes with k in the low half and k + 16 in the high one."""
        name = f"{self._name}.{matrix}"
        pairs, scales = (self._folder.row(f"{name}_{what}", i) for what in ("blocks", "scales"))
        if (scales == _NAN).any():
            raise ValueError(f"{name}_scales: expert {i} has a scale that is not a number")
        codes = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)
        first, second = codes[..., : BLOCK // 2], codes[..., BLOCK // 2 :]
        return torch.cat([scales[..., None], first | second << 4], dim=-1).flatten(-2)

    def _biases(self, i: int) -> Biases | None:
        if not self.form.biases:
            return None
        both, down = (self._folder.row(f"{self._name}.{matrix}_bias", i) for matrix in ("gate_up_proj", "down_proj"))
        return Biases(*self.form.halves(both), down)


def _contiguous(rows: Tensor) -> Blocks:
    return rows.contiguous().numpy()


class Mxfp4Model:
    """The network of a folder, all weights in bf16 but its routed experts, which stay on `meta` until `experts`.

    Raises ValueError as `inspect_checkpoint`, and for a tensor that is missing, has another shape or has no place.
    """

    def __init__(self, model: ModelSpec, holding: WeightPlan) -> None:
        assert model.path is not None
        inspect_checkpoint(model.path)
        folder = Folder(checkpoint_folder(model.path))
        self.network, self._holding = skeleton(model), holding
        self._experts = {
            name: Mxfp4Experts(module, name, folder)
            for name, module in self.network.named_modules()
            if is_experts(module)
        }
        held = self.network.state_dict()
        names = distinct_tensors(self.network)
        for name in names:
            folder.require(name, tuple(held[name].shape))
        folder.require_all_used(names, tuple(f"{name}." for name in self._experts), model.shape.layers)
        fill(self.network, names, folder.read)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._experts[name], self._holding.packing
        if self._holding.original:
            fill_experts(module, stored.matrices)
        return stored.blocks if packing is not None and packing.precision == "mxfp4" else stored.matrices
