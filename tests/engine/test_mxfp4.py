"""Folders in gpt-oss's released layout: numbers of Transformers, packed as they are stored, bad ones refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Mxfp4Config, PreTrainedModel

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.weight_plan import Packing
from ktbench.spec.run_spec import ModelSpec
from tests.engine.engines import FUSED, needs_vector, relative
from tests.engine.families.plain import build, experts_of
from tests.engine.prompts import together
from tests.engine.tiny import decode, load, prefill, run, spec, tiny_model

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MATRICES = ("gate_up_proj", "down_proj")
EXPERTS = "model.layers.1.mlp.experts"
# Of logits: activations are rounded to 8 bits before every product, sums to bf16 after it.
TOLERANCE = 0.05


def quantised(matrix: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Any codes of e2m1, and scales that make weights of ordinary size, for a matrix [E, K, N]."""
    experts, columns, rows = matrix.shape
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(119, 123, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
    return blocks, scales


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    build(tiny_model("gpt_oss_20b")).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    stored: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if name.endswith(MATRICES):
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = quantised(tensor, generator)
        else:
            stored[name] = tensor
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / CONFIG).read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def truth(released: Path) -> PreTrainedModel:
    """Transformers' own, its experts in bf16."""
    network = AutoModelForCausalLM.from_pretrained(
        released,
        dtype=torch.bfloat16,
        quantization_config=Mxfp4Config(dequantize=True),
        experts_implementation="eager",
    )
    assert isinstance(network, PreTrainedModel)
    return network


def model_of(folder: Path) -> ModelSpec:
    return tiny_model("gpt_oss_20b", path=str(folder))


def packed(folder: Path, precision: str) -> HybridEngine:
    return load(model_of(folder), keep_original=False, packing=Packing(precision=precision))  # type: ignore[arg-type]


def test_original_experts_give_the_logits_of_transformers(released: Path, truth: PreTrainedModel) -> None:
    system = load(model_of(released))
    for workload in (decode(), prefill()):
        system.configure(spec(model_of(released), workload))
        assert all(map(torch.equal, run(system, workload.steps), together(truth, workload)))


@needs_vector()
def test_packed_experts_hold_the_numbers_of_transformers(released: Path, truth: PreTrainedModel) -> None:
    operators = packed(released, "mxfp4")._components.operators
    for operator, module in zip(operators, experts_of(truth), strict=True):
        for i in (0, 5):
            seen, (gate_up, down) = operator.fused.matrices(i), (getattr(module, one)[i].T.float() for one in MATRICES)
            assert torch.equal(seen.gate, gate_up[::2])
            assert torch.equal(seen.up, gate_up[1::2])
            assert torch.equal(seen.down, down)


@needs_vector()
@pytest.mark.parametrize("precision", ["mxfp4", "bf16"])
def test_packed_experts_give_logits_near_those_of_transformers(
    precision: str, released: Path, truth: PreTrainedModel
) -> None:
    system = packed(released, precision)
    system.configure(replace(spec(model_of(released), prefill(), **FUSED), precision=precision))  # type: ignore[arg-type]
    for seen, expected in zip(run(system, 2), together(truth, prefill()), strict=True):
        assert relative(seen, expected) < TOLERANCE


def changed(released: Path, folder: Path, **changes: Tensor | None) -> Path:
    """The folder with tensors of layer 1's experts changed, or without them."""
    named = {f"{EXPERTS}.{name}": tensor for name, tensor in changes.items()}
    weights = load_file(released / WEIGHTS) | named
    save_file({k: t for k, t in weights.items() if t is not None}, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_bytes((released / CONFIG).read_bytes())
    return folder


def stored(released: Path, name: str) -> Tensor:
    return load_file(released / WEIGHTS)[f"{EXPERTS}.{name}"]


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("down_proj_scales", r"down_proj_blocks holds U8 without .*down_proj_scales"),
        ("down_proj_blocks", r"down_proj_scales holds U8"),
    ],
)
def test_blocks_and_scales_come_together(lost: str, why: str, released: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        inspect_checkpoint(changed(released, tmp_path, **{lost: None}))


@pytest.mark.parametrize("name", ["down_proj_scales", "down_proj_blocks"])
def test_a_wrong_shape_is_refused_before_anything_loads(name: str, released: Path, tmp_path: Path) -> None:
    spoilt = stored(released, name)[..., :-1].contiguous()
    with pytest.raises(ValueError, match=r"down_proj_(blocks|scales) is .*must be"):
        inspect_checkpoint(changed(released, tmp_path, **{name: spoilt}))


def test_matrices_of_another_width_are_refused(released: Path, tmp_path: Path) -> None:
    spoilt = {name: stored(released, name)[:, :-2].contiguous() for name in ("down_proj_blocks", "down_proj_scales")}
    with pytest.raises(ValueError, match=r"down_proj is .*, the model needs"):
        load(model_of(changed(released, tmp_path, **spoilt)))


def test_a_scale_that_is_not_a_number_is_refused(released: Path, tmp_path: Path) -> None:
    spoilt = stored(released, "gate_up_proj_scales")
    spoilt[3, 1, 0] = 255
    with pytest.raises(ValueError, match="gate_up_proj_scales has a scale that is not a number"):
        load(model_of(changed(released, tmp_path, gate_up_proj_scales=spoilt)))


def test_a_tensor_without_a_place_is_refused(released: Path, tmp_path: Path) -> None:
    folder = changed(released, tmp_path)
    weights = load_file(folder / WEIGHTS) | {"model.layers.1.mlp.other": torch.ones(2)}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no place for model\.layers\.1\.mlp\.other"):
        load(model_of(folder))


def test_other_families_in_mxfp4_are_refused(released: Path, tmp_path: Path) -> None:
    folder = changed(released, tmp_path)
    config = json.loads((folder / CONFIG).read_text()) | {"model_type": "qwen3_moe"}
    (folder / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantised by mxfp4 of qwen3_moe, allowed are"):
        inspect_checkpoint(folder)
