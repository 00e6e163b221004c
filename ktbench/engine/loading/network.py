"""Opens the weights of a model wherever they are, and fills its network with them."""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from ktbench.engine.checkpoint import generation_config, read_checkpoint
from ktbench.engine.forms import LinearBlocks, LinearRows, PackableStore, expert_positions, read_form
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.gguf.reading import GgufSource
from ktbench.engine.loading.folder import FolderSource
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.engine.loading.source import PLAIN, ModuleSource, WeightFilling, WeightSource, fill_experts
from ktbench.engine.synthetic import SyntheticSource
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.spec.run_spec import ModelSpec


def open_source(model: ModelSpec) -> WeightSource:
    """The weights of a model; Transformers reads a folder with an adapter, which is merged into all of them.

    Raises ValueError for a checkpoint that is not whole or not of this model.
    """
    if model.path is None:
        return SyntheticSource(model)
    if is_gguf(model.path):
        return GgufSource(model)
    answers = generation_config(model.path)
    source = FolderSource(model) if model.adapter is None else ModuleSource(read_checkpoint(model))
    source.network.generation_config = answers or source.network.generation_config
    return source


class FilledNetwork:
    """The network of a source, all weights in bf16 but its routed experts, which stay on `meta` until `experts`."""

    def __init__(self, source: WeightSource, plan: WeightPlan, filling: WeightFilling = PLAIN) -> None:
        source.fill(filling)
        self.network, self._source, self._plan = source.network, source, plan
        self._linears = _linear_names(self.network)

    def experts(self, name: str, module: nn.Module) -> PackableStore:
        """What the experts module `name` is packed from, one expert at a time; itself is filled where it is kept."""
        stored, packing = self._source.experts(name), self._plan.packing
        matrices = stored.matrices
        if self._plan.original:
            if any(parameter.is_meta for parameter in module.parameters()):
                fill_experts(module, matrices)
            matrices = partial(read_form(module).matrices, module)
        kept = None if packing is None else stored.packable(packing.precision, self._source.expert_formats)
        return kept or matrices

    @property
    def linear_blocks(self) -> LinearBlocks | None:
        """How linear layers are packed as they are stored; None where none is stored in their precision."""
        return self.linear if any(self.linear(module) is not None for module in self._linears) else None

    def linear(self, module: nn.Module) -> LinearRows | None:
        """The rows of a linear layer where they are stored in a precision that linear layers are packed in."""
        name, precision = self._linears.get(module), self._plan.dense
        return None if name is None or precision is None else self._source.linear(name, precision)


def load_network(model: ModelSpec, progress: LoadProgress = SILENT, *, keep_experts: bool) -> FilledNetwork:
    """A network as Transformers holds it, frozen, with its experts or with what they are packed from.

    Raises ValueError for a checkpoint that is not whole.
    """
    plan = WeightPlan(original=keep_experts, packing=None if keep_experts else Packing())
    filled = FilledNetwork(open_source(model), plan, WeightFilling(progress=progress))
    if keep_experts:
        for name, _position in expert_positions(filled.network):
            filled.experts(name, filled.network.get_submodule(name))
    filled.network.requires_grad_(False)
    return filled


def _linear_names(network: PreTrainedModel) -> WeakKeyDictionary[nn.Module, str]:
    """Names of the weights of linear layers. It does not keep alive what has been packed."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    linears = (module for module in network.modules() if isinstance(module, nn.Linear))
    return WeakKeyDictionary((module, names[id(module.weight)]) for module in linears)
