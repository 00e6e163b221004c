"""One MoE layer run by Transformers on the tokens, routing, weights and rotation of our engine's layer."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from ktbench.engine.components import use_threads
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.layer import CacheColdReplicas, LayerSystem, LoadedLayer, Trial
from ktbench.engine.load_layer import LayerWeights
from ktbench.engine.protocol import HostRole, Unsupported
from ktbench.peers.layers import refusals_of
from ktbench.peers.transformers.own import experts_words, set_experts_implementation
from ktbench.spec.peers import IMPLEMENTATION_OWN, PeerSpec
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.support import unsupported


def open_layer(model: ModelSpec, host: HostRole) -> LayerSystem:
    """The first MoE layer of a model, run by Transformers. Raises ValueError for a checkpoint."""
    weights = LayerWeights.of(model)
    return LayerSystem(weights.model, weights.number, TransformersLayer(weights, host))


class TransformersLayer(LoadedLayer):
    """A family's own experts module, run by the Transformers implementation that a cell names."""

    def __init__(self, weights: LayerWeights, host: HostRole) -> None:
        self._cpus = host.usable_cpus
        count = weights.count("bf16", host)
        self._experts = [weights.original(number) for number in range(count)]
        self._copies: CacheColdReplicas | None = CacheColdReplicas(self._experts, weights.form.experts)

    def choose(self, spec: RunSpec, trial: Trial) -> CacheColdReplicas:
        """See `LoadedLayer`. Runs a step: kernels reject shapes when they are called."""
        if why := unsupported(spec):
            raise Unsupported(why)
        if self._copies is None:
            raise ValueError("the expert weights were released")
        use_threads(self._cpus, spec.engine, None, None)
        for experts in self._experts:
            _run_as(experts, spec.peer)
        with refusals_of(
            experts_words(spec.peer), Exception if spec.peer.implementation == IMPLEMENTATION_OWN else RuntimeError
        ):
            next(trial(self._copies))
        return self._copies

    def notes(self, spec: RunSpec) -> tuple[str, ...]:
        how = f"{experts_words(spec.peer)}, torch {torch.__version__}"
        return (f"transformers {transformers.__version__}: {how}, on threads={torch.get_num_threads()}",)

    def close(self) -> None:
        self._experts, self._copies = [], None


def _run_as(experts: OriginalExperts, peer: PeerSpec) -> None:
    """Modules without Transformers' `use_experts_implementation` have only their own loop."""
    set_experts_implementation(experts, peer)
    if peer.implementation == IMPLEMENTATION_OWN:
        return
    if peer.implementation != "eager" and not hasattr(experts.module, "is_concatenated"):
        raise Unsupported(f"{type(experts.module).__name__} runs eager alone, not {peer.implementation}")
    config: Any = experts.module.config
    config._experts_implementation = peer.implementation
