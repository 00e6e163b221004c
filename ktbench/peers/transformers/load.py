"""Builds the network as Transformers has it, with the weights that our engine has."""

from __future__ import annotations

from transformers import PreTrainedModel

from ktbench.engine.checkpoint import read_checkpoint
from ktbench.engine.forms import expert_places, is_experts
from ktbench.engine.gguf.inspecting import is_gguf
from ktbench.engine.gguf.reading import GgufModel
from ktbench.engine.protocol import HostRole
from ktbench.engine.synthetic import WeightPool, materialise, materialise_experts, skeleton
from ktbench.engine.weight_plan import Holding
from ktbench.peers.transformers.system import PlainTransformers
from ktbench.spec.run_spec import ModelSpec


def open_transformers(model: ModelSpec, host: HostRole) -> PlainTransformers:
    """Plain Transformers on the cores of `host`, for cells of prefill and decode with any experts implementation.

    Raises ValueError for a checkpoint that is not whole and for experts that `read_form` refuses: their calls could not
    be checked.
    """
    network = _synthetic(model) if model.path is None else _stored(model, model.path)
    network.requires_grad_(False)
    return PlainTransformers(model, network, host)


def _stored(model: ModelSpec, path: str) -> PreTrainedModel:
    if not is_gguf(path):
        return read_checkpoint(path)
    read = GgufModel(model, Holding(original=True))
    for name, _ in expert_places(read.network):
        read.experts(name, read.network.get_submodule(name))
    return read.network


def _synthetic(model: ModelSpec) -> PreTrainedModel:
    network, pool = skeleton(model), WeightPool.of(model)
    materialise(network, pool, is_experts)
    for name, _ in expert_places(network):
        materialise_experts(network.get_submodule(name), name, pool)
    return network
