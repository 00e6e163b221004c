"""Checkpoints as model makers release them: plain ones with matrices quantised by the formulas of each format.

A writer makes of a matrix [N, K] its tensors, by what follows the name of its layer, and the float32 numbers that these
stand for, one formula over the whole matrix each. Nothing here knows blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ktbench.spec.run_spec import ModelSpec
from tests.engine.families.plain import build
from tests.engine.tiny import tiny_model

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Written = tuple[dict[str, Tensor], Tensor]
Writer = Callable[[Tensor], Written]
_E4M3_MAX, _E2M1_MAX = 448.0, 6.0
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# AutoAWQ's order_map: nibble i of an int32 holds this one of eight neighbours.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _fp8(weight: Tensor, scale: Tensor, name: str, stored: Tensor) -> Written:
    codes = (weight / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return {"weight": codes, name: stored}, codes.float() * scale


def fp8_squares(weight: Tensor, dtype: torch.dtype = torch.float32) -> Written:
    """DeepSeek-V3: one scale for 128 × 128 weights; Qwen3-Next has it in bf16."""
    rows, columns = weight.shape
    scale = torch.empty(ceil(rows / 128), ceil(columns / 128), dtype=dtype)
    for i, j in torch.cartesian_prod(*(torch.arange(size) for size in scale.shape)).view(-1, 2).tolist():
        scale[i, j] = weight[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)].abs().max() / _E4M3_MAX
    whole = torch.stack([scale.float()[:, k // 128] for k in range(columns)], dim=1)
    whole = torch.stack([whole[n // 128] for n in range(rows)])
    return _fp8(weight, whole, "weight_scale_inv", scale)


def fp8_rows(weight: Tensor) -> Written:
    """compressed-tensors float-quantized, strategy channel."""
    scale = (weight.abs().amax(dim=1, keepdim=True) / _E4M3_MAX).bfloat16()
    return _fp8(weight, scale.float(), "weight_scale", scale)


def fp8_tensor(weight: Tensor) -> Written:
    """ModelOpt FP8, with what it stores for activations and the cache."""
    scale = weight.abs().max() / _E4M3_MAX
    tensors, truth = _fp8(weight, scale, "weight_scale", scale)
    return tensors | {"input_scale": torch.tensor(0.5), "k_scale": torch.tensor(1.0)}, truth


def _groups(weight: Tensor, group: int, most: float) -> Tensor:
    """[N, K / group] of the largest magnitudes."""
    return weight.view(len(weight), -1, group).abs().amax(dim=2) / most


def _spread(groups: Tensor, columns: int) -> Tensor:
    return torch.stack([groups[:, k * groups.shape[1] // columns] for k in range(columns)], dim=1)


def _packed(codes: Tensor, order: Iterable[int] = range(8)) -> Tensor:
    """int32 [M, W] of codes [M, 8 W]."""
    eights = codes.view(len(codes), -1, 8).to(torch.int64)
    words = sum(eights[:, :, column] << (4 * i) for i, column in enumerate(order))
    assert isinstance(words, Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def int4_groups(weight: Tensor, group: int = 32) -> Written:
    """compressed-tensors pack-quantized, as Kimi-K2-Thinking is released."""
    scale = _groups(weight, group, 7.5).bfloat16()
    whole = _spread(scale.float(), weight.shape[1])
    numbers = (weight / whole).round().clamp(-8, 7)
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return {"weight_packed": _packed(numbers + 8), "weight_scale": scale, "weight_shape": shape}, numbers * whole


def _zeros(weight: Tensor, group: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scales and zeros [N, K / group]; GPTQ's version 1 stores the zero 0 as 15."""
    scale = _groups(weight, group, 7.5).half()
    generator = torch.Generator().manual_seed(3)
    zeros = torch.full(scale.shape, 8) if symmetric else torch.randint(6, 11, scale.shape, generator=generator)
    if not symmetric:
        zeros.view(-1)[:2] = torch.tensor([0, 15])
    return scale, zeros


def _rounded(weight: Tensor, scale: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and truth."""
    whole, zero = (_spread(one.float(), weight.shape[1]) for one in (scale, zeros))
    codes = (weight / whole + zero).round().clamp(0, 15)
    return codes, (codes - zero) * whole


def gptq(weight: Tensor, group: int = 64, symmetric: bool = True, stored_less: int = 1) -> Written:
    """AutoGPTQ: version 1 stores zeros less by one."""
    scale, zeros = _zeros(weight, group, symmetric)
    codes, truth = _rounded(weight, scale, zeros)
    order = torch.arange(weight.shape[1], dtype=torch.int32) // group
    tensors = {
        "qweight": _packed(codes).T,
        "scales": scale.T,
        "qzeros": _packed((zeros - stored_less).T.contiguous() % 16),
    }
    return tensors | {"g_idx": order}, truth


def awq(weight: Tensor, group: int = 32) -> Written:
    """AutoAWQ, version gemm."""
    scale, zeros = _zeros(weight, group, symmetric=False)
    codes, truth = _rounded(weight, scale, zeros)
    columns, rows = (_packed(one.T.contiguous(), _AWQ_ORDER) for one in (codes, zeros))
    return {"qweight": columns, "scales": scale.T, "qzeros": rows}, truth


def nvfp4(weight: Tensor, divides: bool) -> Written:
    """ModelOpt, or with the divisor compressed-tensors: two codes of e2m1 a byte, the first in the low half."""
    both = weight.abs().max() / (_E2M1_MAX * _E4M3_MAX)
    if divides:
        both = 1 / (1 / both)
    scale = (_groups(weight, 16, _E2M1_MAX) / both).to(torch.float8_e4m3fn)
    whole = _spread(scale.float() * both, weight.shape[1])
    magnitudes = (weight / whole.clamp(min=1e-30)).abs()
    codes = (magnitudes[..., None] - _E2M1).abs().argmin(dim=-1)
    truth = _E2M1[codes] * whole * weight.sign()
    codes = (codes + 8 * (weight < 0)).to(torch.uint8)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    if divides:
        return {"weight_packed": pairs, "weight_scale": scale, "weight_global_scale": (1 / both).view(1)}, truth
    return {"weight": pairs, "weight_scale": scale, "weight_scale_2": both}, truth


def _ct(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights | {"symmetric": True}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_INT4 = _ct("pack-quantized", type="int", num_bits=4, group_size=32, strategy="group")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A way to release weights: `config` says so in config.json, `described` in a file of its own."""

    write: Writer
    format: str
    config: Mapping[str, Any] | None
    described: Mapping[str, Any] | None = None
    transformers: bool = False  # dequantises it on a CPU


RELEASES: dict[str, Release] = {
    "fp8": Release(write=fp8_squares, format="fp8", config=_FP8, transformers=True),
    "fp8, scales in bf16": Release(
        write=lambda one: fp8_squares(one, torch.bfloat16), format="fp8", config=_FP8, transformers=True
    ),
    "fp8, not said": Release(write=fp8_squares, format="fp8", config=None),
    "fp8 by rows": Release(
        write=fp8_rows, format="fp8", config=_ct("float-quantized", type="float", num_bits=8, strategy="channel")
    ),
    "fp8 by tensors": Release(
        write=fp8_tensor, format="fp8", config=None, described={"quantization": {"quant_algo": "FP8"}}
    ),
    "int4": Release(write=int4_groups, format="int4_bf16", config=_INT4),
    "int4 of 128": Release(write=lambda one: int4_groups(one, 128), format="int4_bf16", config=_INT4),
    "gptq": Release(
        write=gptq, format="q4_0", config={"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": False}
    ),
    "gptq, reordered in name only": Release(
        write=gptq, format="q4_0", config={"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": True}
    ),
    "gptq, zeros as of version 2": Release(
        write=lambda one: gptq(one, stored_less=0),
        format="q4_0",
        config={"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": False},
    ),
    "gptq with zeros": Release(
        write=lambda one: gptq(one, symmetric=False),
        format="int4_zp",
        config={"quant_method": "gptq", "bits": 4, "sym": False, "desc_act": False},
    ),
    "gptq, version 2": Release(
        write=lambda one: gptq(one, symmetric=False, stored_less=0),
        format="int4_zp",
        config={"quant_method": "gptq", "bits": 4, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "awq": Release(
        write=awq, format="int4_zp", config={"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
    ),
    "nvfp4": Release(
        write=lambda one: nvfp4(one, divides=False),
        format="nvfp4",
        config=None,
        described={"quantization": {"quant_algo": "NVFP4", "group_size": 16}},
    ),
    "nvfp4 of compressed-tensors": Release(
        write=lambda one: nvfp4(one, divides=True),
        format="nvfp4",
        config=_ct("nvfp4-pack-quantized", type="float", num_bits=4, group_size=16),
    ),
}
# Each format, and each way to say which it is.
FEW = ("fp8", "fp8, not said", "int4", "gptq", "awq", "nvfp4")
_SIZES = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
_SIZES |= {"shared_expert_intermediate_size": 256, "q_lora_rank": 128, "kv_lora_rank": 128}
# What releases leave in bf16: embedding, head, routers and what does not fill a square of 128.
_QUANTISED = re.compile(
    r".*(mlp|block_sparse_moe|self_attn|linear_attn)\.(?!gate\.)(.*\.)?(\w+_proj\w*|w[123])\.weight"
)
EXPERTS = re.compile(r".*\.experts\.\d+\..*")


def wide(name: str, **changes: Any) -> ModelSpec:
    """A family's tiny model with matrices of at least a block, but for changes."""
    model = tiny_model(name)
    sizes = {key: size for key, size in _SIZES.items() if model.config.get(key) is not None}
    return replace(model, config=model.config | sizes | changes)


@dataclass(frozen=True, kw_only=True)
class Released:
    """A checkpoint `model` in some format, and the plain one whose numbers it stands for."""

    model: ModelSpec
    truth: ModelSpec
    release: Release

    @property
    def folder(self) -> Path:
        return folder_of(self.model)

    @property
    def stored(self) -> dict[str, Tensor]:
        """Tensors as they are released."""
        return load_file(self.folder / WEIGHTS)

    def network(self) -> PreTrainedModel:
        """Transformers on the plain numbers."""
        return plain(folder_of(self.truth))


def folder_of(model: ModelSpec) -> Path:
    assert model.path is not None
    return Path(model.path)


def plain(folder: Path, **options: Any) -> PreTrainedModel:
    """Transformers' own network of a folder, in bf16."""
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, experts_implementation="eager", **options
    )
    assert isinstance(network, PreTrainedModel)
    return network


def quantised(name: str, weight: Tensor) -> bool:
    """Whether releases quantise a tensor: matrices of layers whose columns are whole groups."""
    return (
        weight.dim() == 2
        and weight.shape[1] % 64 == 0
        and weight.shape[1] >= 128
        and _QUANTISED.fullmatch(name) is not None
    )


def write(
    name: str,
    release: Release,
    folder: Path,
    chosen: Callable[[str, Tensor], bool] = quantised,
    **changes: Any,
) -> Released:
    """A family's model in both forms, in subfolders."""
    model = wide(name, **changes)
    there, truth = folder / "released", folder / "plain"
    build(model).save_pretrained(truth)
    stored: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    for key, weight in load_file(truth / WEIGHTS).items():
        if chosen(key, weight):
            tensors, whole = release.write(weight.float())
            owner = key.removesuffix("weight")
            stored |= {owner + last: tensor.contiguous() for last, tensor in tensors.items()}
            numbers[key] = whole.bfloat16()
        else:
            stored[key] = numbers[key] = weight
    there.mkdir()
    save_file(stored, there / WEIGHTS, metadata={"format": "pt"})
    save_file(numbers, truth / WEIGHTS, metadata={"format": "pt"})
    describe(there, json.loads((truth / CONFIG).read_text()), release)
    return Released(model=replace(model, path=str(there)), truth=replace(model, path=str(truth)), release=release)


def describe(folder: Path, config: dict[str, Any], release: Release) -> None:
    """Writes what a release says about itself."""
    said = {} if release.config is None else {"quantization_config": dict(release.config)}
    (folder / CONFIG).write_text(json.dumps(config | said))
    if release.described is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(release.described))
