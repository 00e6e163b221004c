"""Quantised checkpoints as they are released: the numbers of Transformers, and blocks as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import FineGrainedFP8Config

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.forms import ExpertBlocks, ExpertMatrices, is_experts
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.loading.folder import FolderSource
from ktbench.engine.stored.blocks import block_numbers
from ktbench.engine.stored.formats import StoredFormats, stored_formats
from ktbench.engine.weight_plan import Packing
from ktbench.spec.run_spec import ModelSpec, WorkloadSpec
from tests.drawing import covering, few_of
from tests.engine.engines import FUSED, cell, engine_for, logits, needs_vector, relative
from tests.engine.families.zoo import ALL
from tests.engine.prompts import together
from tests.engine.stored.written import EXPERTS, FEW, RELEASES, Released, plain, quantised, write
from tests.engine.tiny import decode, load, prefill, run, spec

FAMILIES = ["deepseek_v3", "qwen3_30b_a3b", "glm_4_5_air", "minimax_m2", "qwen3_next_80b_a3b", "mixtral_8x7b"]
FEW_PAIRS = {("deepseek_v3", "fp8"), ("minimax_m2", "fp8"), ("qwen3_next_80b_a3b", "int4"), ("mixtral_8x7b", "int4")}
# Of logits, where experts, linear layers or their activations are rounded to int8. Every token goes to all experts:
# routers cannot choose otherwise.
TOLERANCE = 0.03


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Released:
    return write("qwen3_30b_a3b", RELEASES[request.param], tmp_path_factory.mktemp("released"), **ALL)


def same_logits(one: Released, *workloads: WorkloadSpec) -> bool:
    system, network = load(one.model), one.network()
    seen = []
    for workload in workloads:
        system.configure(spec(one.model, workload))
        seen += map(torch.equal, run(system, workload.steps), together(network, workload))
    return all(seen)


def test_base_gives_the_logits_of_transformers_on_the_numbers(released: Released) -> None:
    assert same_logits(released, decode(), prefill())


@pytest.mark.parametrize("case", few_of(product(FAMILIES, ("fp8", "int4")), FEW_PAIRS), ids=" ".join)
def test_families_give_the_logits_of_transformers_on_the_numbers(case: tuple[str, str], tmp_path: Path) -> None:
    family, name = case
    assert same_logits(write(family, RELEASES[name], tmp_path), prefill())


def in_whole_squares(name: str, weight: torch.Tensor) -> bool:
    """Transformers takes two squares of 136 rows for squares of 68."""
    return quantised(name, weight) and (len(weight) <= 128 or len(weight) % 128 == 0)


@pytest.mark.parametrize("family", few_of(FAMILIES, {"deepseek_v3", "minimax_m2"}))
def test_transformers_dequantises_fp8_to_the_same_logits(family: str, tmp_path: Path) -> None:
    one = write(family, RELEASES["fp8"], tmp_path, in_whole_squares)
    network = plain(one.folder, quantization_config=FineGrainedFP8Config(dequantize=True))
    system = load(one.model)
    system.configure(spec(one.model, prefill()))
    assert all(map(torch.equal, run(system, 2), together(network, prefill())))


def only_experts(name: str, weight: torch.Tensor) -> bool:
    return quantised(name, weight) and EXPERTS.fullmatch(name) is not None


def test_experts_alone_may_be_quantised(tmp_path: Path) -> None:
    one = write("deepseek_v3", RELEASES["int4"], tmp_path, only_experts)
    assert stored_formats(str(one.folder)) == StoredFormats(
        experts=("int4_bf16",), dense=("bf16",), attention=("bf16",)
    )
    assert same_logits(one, prefill())


def test_blocks_of_experts_stand_for_the_numbers(released: Released) -> None:
    seen, expected = (FolderSource(model) for model in (released.model, released.truth))
    names = [name for name, module in seen.network.named_modules() if is_experts(module)]
    for name in names:
        held = seen.experts(name)
        assert set(held.formats) == {released.release.format}
        assert held.blocks is not None
        for i in (0, 5):
            require_same(held.blocks(i), held.matrices(i), expected.experts(name).matrices(i), held.formats[0])


def require_same(blocks: ExpertBlocks, seen: ExpertMatrices, truth: ExpertMatrices, kind: str) -> None:
    for field in ("gate", "up", "down"):
        rows: np.ndarray = getattr(blocks, field)
        assert rows.dtype == np.uint8
        assert rows.flags.c_contiguous
        assert torch.equal(block_numbers(rows, kind).bfloat16(), getattr(truth, field))
        assert torch.equal(getattr(seen, field), getattr(truth, field))


def test_formats_are_told_from_headers(released: Released) -> None:
    kind = released.release.format
    assert stored_formats(str(released.folder)) == StoredFormats(experts=(kind,), dense=(), attention=(kind, "bf16"))
    layers = stored_formats(str(released.folder)).layers
    assert {layer.formats for layer in layers} == {(kind, kind, kind)}
    tensors = {name: one for name, one in released.stored.items() if not name.endswith(("input_scale", "k_scale"))}
    held = sum(tensor.nbytes for name, tensor in tensors.items() if ".experts." in name)
    assert sum(layer.nbytes for layer in layers) == held  # with scales, zero points and shapes
    assert inspect_checkpoint(released.folder)["model_type"] == "qwen3_moe"
    assert "quantization_config" not in inspect_checkpoint(released.folder)


def packed(model: ModelSpec, precision: str) -> HybridEngine:
    return load(model, keep_original=False, packing=Packing(precision=precision))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def packings(released: Released) -> Callable[[str], HybridEngine]:
    return cache(lambda precision: packed(released.model, precision))


# Of every format in either precision.
PACKED = pytest.mark.parametrize(
    ("released", "precision"),
    covering(product(RELEASES, ("bf16", "int8")), lambda name, precision: (name, (RELEASES[name].format, precision))),
    indirect=["released"],
    scope="module",
)


@needs_vector()
@PACKED
def test_experts_are_packed_from_the_numbers(
    precision: str, released: Released, packings: Callable[[str], HybridEngine]
) -> None:
    """The same bits as from the plain checkpoint, whose experts are packed one by one as well."""
    one, other = packings(precision), packed(released.truth, precision)
    for seen, expected in zip(one._components.operators, other._components.operators, strict=True):
        for i in (0, 5):
            pair = (operator.fused.matrices(i).tensors for operator in (seen, expected))
            assert all(map(torch.equal, *pair))


@needs_vector()
@PACKED
def test_packed_experts_give_logits_near_those_of_transformers(
    precision: str, released: Released, packings: Callable[[str], HybridEngine]
) -> None:
    system = packings(precision)
    system.configure(replace(spec(released.model, prefill(), **FUSED), precision=precision))
    assert relative(run(system, 2), together(released.network(), prefill())) < TOLERANCE


@needs_vector()
@pytest.mark.parametrize("name", few_of(RELEASES, FEW))
def test_what_kernels_know_is_computed_on_as_it_is_stored(name: str, tmp_path: Path) -> None:
    """Routed experts, and linear layers of the lean device role."""
    one = write("glm_4_5_air", RELEASES[name], tmp_path, **ALL)
    kind: Any = one.release.format
    lean = cell(one.model, decode(), **FUSED, packed_dense=True, precision=kind, device_precision=kind)
    system = engine_for(lean)
    held, device = one.network().state_dict(), system._components.device
    for operator in system._components.operators:
        experts, expected = f"model.layers.{operator.position.layer}.mlp.experts", operator.fused.matrices(3)
        assert torch.equal(expected.down.bfloat16(), held[f"{experts}.down_proj"][3])
        both = torch.cat([expected.gate, expected.up])
        assert torch.equal(both.bfloat16(), held[f"{experts}.gate_up_proj"][3])
    assert device is not None
    assert {matrix.packed.precision for matrix in device._matrices} == {kind, "bf16"}
    assert relative(logits(system, lean), together(one.network(), decode())) < TOLERANCE
