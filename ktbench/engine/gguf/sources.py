"""Where the weights of an export come from: the engine's synthetic numbers, or the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint, is_mxfp4
from ktbench.engine.forms import ExpertMatrices, ExpertStore, Glu, is_experts, read_form
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise
from ktbench.resources import checkpoint_folder
from ktbench.spec.run_spec import ModelSpec

_FILES = "model*.safetensors"  # as inspect_checkpoint requires
# Mixtral's block goes by another name on the Hub, and so do its projections: gate, up, down.
_BLOCK, _OTHER_BLOCK = ".mlp.", ".block_sparse_moe."
_PROJECTIONS = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def complete_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with all defaults of its family in Transformers."""
    whole: dict[str, Any] = AutoConfig.for_model(**config).to_dict()
    return whole


def open_source(model: ModelSpec, network: PreTrainedModel) -> Source:
    """Weights for a network on `meta`; it gets memory where the model is synthetic, but for its routed experts.

    Raises ValueError for a folder that is not whole.
    """
    if model.path is None:
        return SyntheticSource(model, network)
    inspect_checkpoint(model.path)
    if is_mxfp4(model.path):
        raise ValueError(f"model.path={model.path}: weights in mxfp4 are not exported, let llama.cpp convert them")
    return CheckpointSource(str(checkpoint_folder(model.path)), network)


class SyntheticSource:
    """Everything but routed experts in memory, and one expert."""

    def __init__(self, model: ModelSpec, network: PreTrainedModel) -> None:
        self._network, self._pool = network, WeightPool.of(model)
        materialise(network, self._pool, is_experts)
        self._tensors = network.state_dict()

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts."""
        whole: Tensor = self._tensors[name]
        return whole

    def experts(self, name: str) -> ExpertStore:
        """Routed experts, one at a time: a call overwrites what the call before gave."""
        return PassingExperts(self._network.get_submodule(name), name, self._pool)


class CheckpointSource:
    """Tensors read one at a time, in bf16 as the engine holds them."""

    def __init__(self, folder: str, network: PreTrainedModel) -> None:
        self._folder, self._network = folder, network
        self._exact: tuple[str, ...] = tuple(getattr(network, "_keep_in_fp32_modules_strict", None) or ())
        files: list[Any] = [safe_open(file, "pt") for file in sorted(Path(folder).glob(_FILES))]
        self._file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts. A tied head is the embedding."""
        others = (_EMBEDDING,) if name == _HEAD else ()
        stored = self._stored(name, name.replace(_BLOCK, _OTHER_BLOCK), *others)
        exact = any(part in name for part in self._exact)
        return self._read(stored).to(torch.float32 if exact else torch.bfloat16)

    def experts(self, name: str) -> ExpertStore:
        """Routed experts, one at a time: stored stacked as in memory, or separately as on the Hub."""
        module = self._network.get_submodule(name)
        form, keys = read_form(module), [key for key, _ in module.named_parameters()]
        if f"{name}.{keys[0]}" in self._file_of:
            return lambda i: form.split({key: self._slice(f"{name}.{key}", i) for key in keys})
        return lambda i: self._separate(name, i, form.glu)

    def _slice(self, name: str, i: int) -> Tensor:
        """The part of a stacked tensor that belongs to expert `i`."""
        part: Tensor = self._file_of[self._stored(name)].get_slice(name)[i]
        return part.to(torch.bfloat16)

    def _separate(self, name: str, i: int, glu: Glu) -> ExpertMatrices:
        """Expert `i` where each of its matrices is a tensor of its own."""
        blocks = (name, name.replace(_BLOCK, _OTHER_BLOCK))
        found = {
            field: self._stored(*(f"{block}.{i}.{word}.weight" for block in blocks for word in words))
            for field, words in _PROJECTIONS.items()
        }
        gate, up, down = (self._read(found[field]).to(torch.bfloat16) for field in ("gate", "up", "down"))
        return ExpertMatrices(gate=gate, up=up, down=down, glu=glu)

    def _stored(self, *names: str) -> str:
        """The first of the names that the files have."""
        found = next((name for name in names if name in self._file_of), None)
        if found is None:
            raise ValueError(f"model.path={self._folder}: no weights for {names[0]}")
        return found

    def _read(self, stored: str) -> Tensor:
        whole: Tensor = self._file_of[stored].get_tensor(stored)
        return whole


# The numbers that the engine itself loads for the same model.
Source = SyntheticSource | CheckpointSource
