"""Where the weights of an export come from: the engine's synthetic numbers, or the files of a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from ktbench.engine.checkpoint import is_mxfp4, stored_weights
from ktbench.engine.folder import Folder, StoredExperts
from ktbench.engine.forms import is_experts
from ktbench.engine.synthetic import TransientExperts, WeightPool, materialise
from ktbench.spec.run_spec import ModelSpec


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
    weights = stored_weights(model.path)
    if is_mxfp4(model.path):
        raise ValueError(f"model.path={model.path}: weights in mxfp4 are not exported, let llama.cpp convert them")
    return Folder(model.path, network, weights)


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

    def experts(self, name: str) -> StoredExperts:
        """Routed experts, one at a time: a call overwrites what the call before gave."""
        return StoredExperts(matrices=TransientExperts(self._network.get_submodule(name), name, self._pool))


# The numbers that the engine itself loads for the same model.
Source = SyntheticSource | Folder
