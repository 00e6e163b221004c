"""Finds the tensors of a network, its routed experts aside, in a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.forms import Blocks, is_experts
from ktbench.engine.gguf.changes import RotaryRows, Same
from ktbench.engine.gguf.families import Family, Mapped
from ktbench.engine.gguf.weights import MappedWeights
from ktbench.spec.run_spec import Precision

# Changes that leave rows whole: they do to the blocks of a row what they do to its numbers.
_BY_ROWS = (Same, RotaryRows)
_LAYER = re.compile(r"blk\.(\d+)\.")


class Lookup:
    """Places by the names of a network's tensors; tensors that are tied have one.

    Raises ValueError naming a tensor that the file lacks, or has in another shape than the network.
    """

    def __init__(self, network: PreTrainedModel, family: Family, weights: MappedWeights) -> None:
        self._config, self._weights = network.config.to_dict(), weights
        self.places = {name: family.mapped(name) for name in _distinct(network)}
        held = network.state_dict()
        for name, place in self.places.items():
            self._require(name, place, tuple(held[name].shape))

    def read(self, name: str) -> Tensor:
        """A tensor of the network in bf16; what the file has in float32 in that."""
        place = self.places[name]
        return place.join([self._weights.read(one) for one in place.names], self._config)

    def blocks(self, name: str, precision: Precision) -> Blocks | None:
        """The rows of a matrix of the network where they are in the file as blocks of `precision`."""
        place = self.places[name]
        if not isinstance(place.change, _BY_ROWS) or not self._weights.is_in(place.names[0], precision):
            return None
        rows = self._weights.rows(place.names[0])
        return cast("Blocks", place.join([cast("Tensor", rows)], self._config))

    def require_all_used(self, others: Collection[str]) -> None:
        """Raise ValueError for a tensor of the file that is neither here nor one of `others`.

        Layers after the network's last predict further tokens, which Transformers leaves out as well.
        """
        used = {name for place in self.places.values() for name in place.names} | set(others)
        for name in self._weights.tensors:
            layer = _LAYER.match(name)
            if name not in used and not (layer and int(layer[1]) >= self._config["num_hidden_layers"]):
                raise ValueError(f"{self._weights.path}: the model has no place for tensor {name}")

    def _require(self, name: str, place: Mapped, asked: tuple[int, ...]) -> None:
        shapes = [self._weights.info(one).shape for one in place.names]
        try:
            held = tuple(place.join([torch.empty(shape, device="meta") for shape in shapes], self._config).shape)
        except (RuntimeError, IndexError):  # sizes that do not divide
            held = ()
        if held != asked:
            said = ", ".join(f"{one} is {shape}" for one, shape in zip(place.names, shapes, strict=True))
            raise ValueError(f"{self._weights.path}: tensor {said}, the model asks for {asked} in {name}")


def _distinct(network: PreTrainedModel) -> list[str]:
    """Names of parameters and persistent buffers, the first of those that are tied."""
    experts = tuple(f"{name}." for name, module in network.named_modules() if is_experts(module))
    held = {name: t for name, t in network.state_dict(keep_vars=True).items() if not name.startswith(experts)}
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    return [name for name, tensor in held.items() if first[id(tensor)] == name]
