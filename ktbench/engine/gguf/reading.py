"""Reads a GGUF file into a network of Transformers; quantised weights stay as they are where the engine packs such."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.forms import Blocks, LinearBlocks, PackableStore, is_experts
from ktbench.engine.gguf.experts import StoredExperts
from ktbench.engine.gguf.families import family_of
from ktbench.engine.gguf.header import read_header
from ktbench.engine.gguf.lookup import Lookup
from ktbench.engine.gguf.weights import MappedWeights
from ktbench.engine.synthetic import skeleton
from ktbench.engine.weight_plan import Holding
from ktbench.spec.run_spec import ModelSpec


class GgufModel:
    """The network of a file, all weights in bf16 but its routed experts, which stay on `meta` until asked for.

    Raises ValueError naming a tensor that the file lacks, has in another shape, or that the network has no place for;
    and as `read_header`.
    """

    def __init__(self, model: ModelSpec, holding: Holding) -> None:
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
        self._fill()
        self._linears = _linears(self.network)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._experts[name], self._holding.packing
        if self._holding.original:
            stored.fill(module)
        return stored.blocks if packing is not None and stored.are_in(packing.precision) else stored.matrices

    @property
    def linear_blocks(self) -> LinearBlocks | None:
        """How linear layers are packed as they lie in the file; None where none is stored in their precision."""
        return self.blocks if any(self.blocks(module) is not None for module in self._linears) else None

    def blocks(self, module: nn.Module) -> Blocks | None:
        """The rows of a linear layer where the file has them in the precision that linear layers are packed in."""
        name, precision = self._linears.get(module), self._holding.dense
        return None if name is None or precision is None else self._lookup.blocks(name, precision)

    def _fill(self) -> None:
        """Buffers that no file has, such as rotary frequencies, are set by the model's own initialisation."""
        network = self.network
        for name, module in network.named_modules():
            if name not in self._experts:
                module.to_empty(device="cpu", recurse=False)
        for name in self._lookup.places:
            _set(network, name, self._lookup.read(name))
        initialise: Any = network.initialize_weights
        initialise()
        network.tie_weights()


def _set(network: PreTrainedModel, name: str, tensor: Tensor) -> None:
    """A parameter in its own type; a buffer as it was read: what corrects routers is float32 in Transformers, too."""
    owner, last = network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    if isinstance(held := getattr(owner, last), nn.Parameter):
        tensor = nn.Parameter(tensor.to(held.dtype), requires_grad=False)
    tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    setattr(owner, last, tensor)


def _linears(network: PreTrainedModel) -> WeakKeyDictionary[nn.Module, str]:
    """Names of the weights of linear layers. It does not keep alive what has been packed."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    linears = (module for module in network.modules() if isinstance(module, nn.Linear))
    return WeakKeyDictionary((module, names[id(module.weight)]) for module in linears)
