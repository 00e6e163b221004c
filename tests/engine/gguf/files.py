"""Exported files as the `gguf` package reads them, and what it would have in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.forms import is_experts, read_form
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.gguf.families import GgufType, family_of
from ktbench.spec.run_spec import ModelSpec

gguf = pytest.importorskip("gguf", reason="gguf is not installed")


def written(model: ModelSpec, folder: Path, experts: GgufType = "BF16", dense: GgufType | None = None) -> Path:
    file = folder / f"{model.name}-{experts}.gguf"
    export_gguf(model, file, experts=experts, dense=dense or experts, say=lambda _: None)
    return file


def tensors(file: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}


def numbers(tensor: Any) -> NDArray[np.float32]:
    """What a tensor of a file stands for, by the `gguf` package."""
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(tensor.shape)[::-1])


def expected(network: PreTrainedModel, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors by the names that `gguf` knows for those of Transformers, in the form that llama.cpp loads."""
    architecture = next(one for one in gguf.MODEL_ARCH if gguf.MODEL_ARCH_NAMES[one] == family_of(config).architecture)
    known = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for key, tensor in hub_tensors(network, config):
        name = known.get_name(key, try_suffixes=(".weight", ".bias")) or known.get_name(f"{key}.weight", (".weight",))
        assert name, key
        yield (
            (
                name
                if "." in name.rpartition("_")[2] or name.endswith(("weight", "bias", "ssm_a"))
                else f"{name}.weight"
            ),
            tensor,
        )


def hub_tensors(network: PreTrainedModel, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    if config["model_type"] == "qwen3_next":
        yield from delta_tensors(network, config)
        return
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for key, tensor in network.state_dict().items():
        word = key.split(".")[-2]
        if ".mlp.experts." in key:
            continue
        if word == "kv_b_proj":
            both = tensor.unflatten(0, (config["num_attention_heads"], -1))
            keys, values = both.split([config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
            yield key.replace("kv_b", "k_b"), keys.transpose(1, 2)
            yield key.replace("kv_b", "v_b"), values
        elif config["model_type"] == "mixtral" and word in heads:
            yield key, tensor.unflatten(0, (heads[word], 2, -1)).transpose(1, 2).flatten(0, 2)
        elif word == "shared_expert_gate":
            yield key, tensor[0]
        elif config["model_type"] == "minimax_m2" and key.endswith("correction_bias"):
            yield key.replace("mlp.", "block_sparse_moe.").replace("correction_bias", "correction.bias"), tensor
        else:
            # Without a suffix: sinks, and a bias that has none of its own.
            yield key.replace("correction_bias", "correction.bias").replace("sinks", "sinks.weight"), tensor
    yield from all_stacked(network)


def all_stacked(network: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    for name, module in network.named_modules():
        if is_experts(module):
            yield from stacked(name, module)


def delta_tensors(network: PreTrainedModel, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Those of a gated delta net go by names of their own, and norms are one above what the model stores."""
    heads, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    for key, tensor in network.state_dict().items():
        base, _, last = key.rpartition(".")
        if ".mlp.experts." in key:
            continue
        if base.endswith("in_proj_qkvz"):
            q, k, v, z = tensor.unflatten(0, (heads, -1)).split([width, width, values, values], dim=1)
            qkv = torch.cat([one.flatten(0, 1) for one in (q, k, v)])
            yield f"{base.rpartition('.')[0]}.in_proj_qkv.weight", qkv
            yield f"{base.rpartition('.')[0]}.in_proj_z.weight", z.flatten(0, 1)
        elif last == "A_log":
            yield key, -tensor.float().exp()
        elif last == "dt_bias":
            yield f"{base}.dt_proj.bias", tensor
        elif base.endswith("conv1d"):
            yield key, tensor[:, 0]
        elif base.endswith("norm") and not base.endswith("linear_attn.norm"):
            yield key, tensor.float() + 1
        else:
            yield key, tensor[0] if base.endswith("shared_expert_gate") else tensor
    yield from all_stacked(network)


def stacked(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
    form = read_form(module)
    experts = [form.matrices(module, i) for i in range(form.experts)]
    for one in ("gate", "up", "down"):
        yield f"{name}.{one}_proj.weight", torch.stack([getattr(expert, one) for expert in experts])
        if form.biases:
            yield f"{name}.{one}_proj.bias", torch.stack([getattr(expert.biases, one) for expert in experts])
