"""Loads what a training workload is measured on: packed experts, or those of plain Transformers for base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertStore, expert_positions, read_form
from ktbench.engine.fused import FusedHost
from ktbench.engine.loading.network import load_network
from ktbench.engine.loading.progress import SILENT, LoadProgress
from ktbench.engine.protocol import HostRole
from ktbench.engine.training.experts import TrainableExperts
from ktbench.engine.training.system import TrainedNetwork, TrainingSystem
from ktbench.engine.weight_plan import Packing
from ktbench.engine.work import dense_params
from ktbench.spec.run_spec import RunSpec

# Of Transformers' ways to run experts the one that reads adapted weights once a call, where eager does for each expert.
_BASE_EXPERTS = "grouped_mm"


class RecomputableExperts(nn.Module):
    """Experts of plain Transformers, adapters included: with `recompute` their activations are formed again.

    They stay on the cores, as `TrainableExperts` do.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.experts, self.recompute = experts, True

    def forward(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] of `hidden` [T, H], `ids` and `gates` [T, k]."""
        inputs = hidden.cpu(), ids.cpu(), gates.cpu()
        if not self.recompute:
            output: Tensor = self.experts(*inputs)
            return output.to(hidden.device)
        again: Any = checkpoint
        formed: Tensor = again(self.experts, *inputs, use_reentrant=False, preserve_rng_state=False)
        return formed.to(hidden.device)


def load_training(spec: RunSpec, host: HostRole, progress: LoadProgress = SILENT) -> TrainingSystem:
    """The network of `spec` with its adapters, for cells that differ in features alone; its experts are on the cores.

    Raises ValueError for a checkpoint that is not whole, and for experts that `read_form` refuses.
    """
    filled = load_network(spec.model, progress, keep_experts=not spec.engine.fused)
    network = filled.network
    params = dense_params(network)
    positions = [(name, position.layer) for name, position in expert_positions(network)]
    if spec.engine.fused:
        fused = FusedHost(host.usable_cpus, Packing.of(spec, host), CallRecorder())
        stores: list[ExpertStore] = []
        for name, layer in positions:
            module = network.get_submodule(name)
            packed = fused.pack(filled.experts(name, module), read_form(module), layer)
            network.set_submodule(name, TrainableExperts(packed, read_form(module)))
            stores.append(packed.matrices)
    else:
        fused = None
        stores = [OriginalExperts(network.get_submodule(name)).matrices for name, _ in positions]
        network.set_experts_implementation(_BASE_EXPERTS)
    experts = [network.get_submodule(name) for name, _ in positions]
    _move_others(network, [name for name, _ in positions], spec.engine.device)
    adapted = _with_adapters(network, spec, [name for name, _ in positions])
    held = TrainedNetwork(
        network=adapted,
        device=torch.device(spec.engine.device),
        experts=experts,
        switches=experts if fused is not None else _recomputable(adapted, [name for name, _ in positions]),
        stores=stores,
        layers=[layer for _, layer in positions],
        dense_params=params,
        host=fused,
        cpus=host.usable_cpus,
    )
    return TrainingSystem(spec.model, held)


def _move_others(network: PreTrainedModel, experts: list[str], device: str) -> None:
    """All but the experts goes to the device, before PEFT puts each adapter where its weights are."""
    held = {name: network.get_submodule(name) for name in experts}
    for name in experts:
        network.set_submodule(name, nn.Identity())
    moved: nn.Module = network
    moved.to(device)
    for name, module in held.items():
        network.set_submodule(name, module)


def _with_adapters(network: PreTrainedModel, spec: RunSpec, experts: list[str]) -> nn.Module:
    """LoRA as PEFT puts it in place; the network itself is changed."""
    from peft import LoraConfig, get_peft_model

    work = spec.workload
    attention = [name for name, one in network.named_modules() if isinstance(one, nn.Linear) and ".self_attn." in name]
    matrices = [f"{name}.{matrix}" for name in experts for matrix in ("gate_up_proj", "down_proj")]
    rank = work.lora_rank
    assert rank is not None
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=attention if work.adapters != "experts" else [],
        target_parameters=matrices if work.adapters != "attention" else [],
    )
    with torch.random.fork_rng(devices=[]):  # each cell draws first values of its own
        wrap: Callable[..., nn.Module] = get_peft_model
        return wrap(network, config)


def _recomputable(adapted: nn.Module, names: list[str]) -> list[nn.Module]:
    """Puts the switch for recomputation around the experts of base and their adapters."""
    inner: Any = adapted
    network: nn.Module = inner.base_model.model
    found: list[nn.Module] = []
    for name in names:
        found.append(RecomputableExperts(network.get_submodule(name)))
        network.set_submodule(name, found[-1])
    return found
