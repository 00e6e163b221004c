"""Where weights come from: what a loader asks of a folder, a GGUF file, a seed, or a network in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ktbench.engine.forms import (
    ExpertBlocks,
    ExpertMatrices,
    ExpertStore,
    LinearRows,
    PackableStore,
    as_numpy,
    is_experts,
    read_form,
)
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.spec.weights import Precision, stands_for_all

_WEIGHT = ".weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredExperts:
    """The routed experts of one layer: expert `i` in bf16, and in the blocks that it is stored in, if it is.

    `formats` are those of gate, up and down; plain numbers are bf16.
    """

    matrices: ExpertStore
    blocks: Callable[[int], ExpertBlocks] | None = None
    formats: tuple[Precision, Precision, Precision] = ("bf16", "bf16", "bf16")

    def packable(self, precision: Precision, stored: Collection[Precision]) -> PackableStore | None:
        """What keeps the experts as they are stored where they are packed in `precision`; None where numbers do.

        `stored` are the formats of all layers: a precision may stand for all of them (see `stands_for_all`).
        """
        if stands_for_all(precision, stored):
            return self.blocks or (lambda i: _plain_blocks(self.matrices(i)))
        return self.blocks if all(kind == precision for kind in self.formats) else None


def _plain_blocks(expert: ExpertMatrices) -> ExpertBlocks:
    """An expert that is packed in bf16 whatever others are."""
    gate, up, down = (as_numpy(matrix.contiguous()) for matrix in (expert.gate, expert.up, expert.down))
    return ExpertBlocks(gate=gate, up=up, down=down, precision="bf16", down_precision="bf16", biases=expert.biases)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFilling:
    """How a network is filled: linear layers whose weights are not needed stay on `meta`, `progress` counts bytes."""

    unread: Callable[[PreTrainedModel], frozenset[str]] = lambda network: frozenset()
    progress: LoadProgress = SILENT


PLAIN = WeightFilling()


class WeightSource(Protocol):
    """The weights of one model, wherever they are; the only thing that a loader knows of them.

    `network` is on `meta` at first, routed experts for good. `expert_formats` are the formats that routed experts are
    stored in. Making one raises ValueError where a tensor is missing, has another shape than the network's, or has no
    place in it.
    """

    network: PreTrainedModel
    expert_formats: Collection[Precision]

    def fill(self, filling: WeightFilling = PLAIN) -> None:
        """Give memory and content to everything but the routed experts."""

    def tensor(self, name: str) -> Tensor:
        """A tensor of the network outside of its routed experts."""

    def experts(self, name: str) -> StoredExperts:
        """The routed experts of module `name`, one at a time: a call may overwrite what the call before gave."""

    def linear(self, name: str, precision: Precision) -> LinearRows | None:
        """The rows of the matrix `name` as they are stored, if linear layers packed in `precision` keep them so."""


class ModuleSource:
    """A `WeightSource` whose network is in memory as a whole."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.expert_formats: Collection[Precision] = ["bf16"]

    def fill(self, filling: WeightFilling = PLAIN) -> None:
        """Nothing is left to fill."""

    def tensor(self, name: str) -> Tensor:
        """A view of the network's."""
        held: Tensor = self.network.state_dict()[name]
        return held

    def experts(self, name: str) -> StoredExperts:
        """Views of the module that is there when one is asked for."""
        form = read_form(self.network.get_submodule(name))
        return StoredExperts(matrices=lambda i: form.matrices(self.network.get_submodule(name), i))

    def linear(self, name: str, precision: Precision) -> LinearRows | None:
        """All are numbers."""


def distinct_tensors(network: PreTrainedModel) -> list[str]:
    """Names of parameters and persistent buffers outside of routed experts, the first of those that are tied."""
    experts = tuple(f"{name}." for name, module in network.named_modules() if is_experts(module))
    held = {name: t for name, t in network.state_dict(keep_vars=True).items() if not name.startswith(experts)}
    first = {id(tensor): name for name, tensor in reversed(held.items())}
    return [name for name, tensor in held.items() if first[id(tensor)] == name]


def fill(
    network: PreTrainedModel, names: Iterable[str], read: Callable[[str], Tensor], filling: WeightFilling = PLAIN
) -> None:
    """Give memory and content to everything on `meta` but the expert modules: what `read` gives for each of `names`.

    Buffers that no file has, such as rotary frequencies, are set by the model's own initialisation.
    """
    unread = filling.unread(network)
    for name, module in network.named_modules():
        if not is_experts(module):
            allocate(module, keeps_weight_on_meta=name in unread)
    held = network.state_dict(keep_vars=True)
    wanted = {name: held[name].nbytes for name in names if name.removesuffix(_WEIGHT) not in unread}
    for name in filling.progress.over("reading", wanted):
        _set(network, name, read(name))
    initialise: Any = network.initialize_weights
    initialise()
    network.tie_weights()


def allocate(module: nn.Module, *, keeps_weight_on_meta: bool) -> None:
    """Memory for what the module itself holds, with a linear layer's bias alone where its weight is not needed."""
    if not keeps_weight_on_meta:
        module.to_empty(device="cpu", recurse=False)
    elif isinstance(module, nn.Linear) and module.bias is not None:
        module.bias = nn.Parameter(torch.empty_like(module.bias, device="cpu"), requires_grad=False)


def fill_experts(module: nn.Module, matrices: ExpertStore) -> None:
    """Give memory to one experts module on `meta`, and the numbers of `matrices`."""
    module.to_empty(device="cpu", recurse=False)
    form = read_form(module)
    for i in range(form.experts):
        for stored, held in zip(matrices(i).tensors, form.matrices(module, i).tensors, strict=True):
            held.data.copy_(stored)


def _set(network: PreTrainedModel, name: str, tensor: Tensor) -> None:
    """A parameter in its own type; a buffer in that or in float32, where a file has it so: such correct routers."""
    owner, last = network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    if isinstance(held := getattr(owner, last), nn.Parameter):
        tensor = nn.Parameter(tensor.to(held.dtype), requires_grad=False)
    else:
        tensor = tensor.to(torch.promote_types(tensor.dtype, held.dtype))
    tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    setattr(owner, last, tensor)
