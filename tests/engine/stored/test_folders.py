"""Quantised folders in the forms that releases take: shards, stacks, nested models, layers beyond, other users."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import FineGrainedFP8Config

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.forms import ExpertBlocks, is_experts
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.gguf.header import read_header
from ktbench.engine.gguf.reading import MappedWeights
from ktbench.engine.loading.network import FilledNetwork, open_source
from ktbench.engine.protocol import HostRole
from ktbench.engine.stored.blocks import block_numbers
from ktbench.engine.stored.formats import StoredFormats, stored_formats
from ktbench.engine.stored.methods import read_method
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.peers.transformers.system import open_transformers
from ktbench.spec.run_spec import ModelSpec, RunSpec
from tests.drawing import few_of
from tests.engine.prompts import together
from tests.engine.stored.written import CONFIG, EXPERTS, FEW, RELEASES, WEIGHTS, Released, plain, quantised, write
from tests.engine.tiny import decode, load, prefill, run, spec

CONFIGS = Path(__file__).parents[4] / "shared" / "data" / "model_configs"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return write("qwen3_30b_a3b", RELEASES["fp8"], tmp_path_factory.mktemp("qwen"))


def rewritten(one: Released, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> ModelSpec:
    folder.mkdir(exist_ok=True)
    save_file(change(load_file(one.folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_bytes((one.folder / CONFIG).read_bytes())
    return replace(one.model, path=str(folder))


def seen(model: ModelSpec) -> list[Tensor]:
    system = load(model)
    system.configure(spec(model, prefill()))
    return run(system, 2)


def test_scales_may_be_in_another_file_than_weights(qwen: Released, tmp_path: Path) -> None:
    tensors = load_file(qwen.folder / WEIGHTS)
    scales = {name for name in tensors if name.endswith("scale_inv")}
    for file, names in (("a.safetensors", scales), ("b.safetensors", tensors.keys() - scales)):
        save_file({name: tensors[name] for name in names}, tmp_path / file, metadata={"format": "pt"})
    places = {name: "a.safetensors" if name in scales else "b.safetensors" for name in tensors}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    (tmp_path / CONFIG).write_bytes((qwen.folder / CONFIG).read_bytes())
    model = replace(qwen.model, path=str(tmp_path))
    assert all(map(torch.equal, seen(model), together(qwen.network(), prefill())))


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As Transformers holds and saves experts in FP8."""
    kept = {name: tensor for name, tensor in tensors.items() if not EXPERTS.fullmatch(name)}
    for layer in range(2):
        owner = f"model.layers.{layer}.mlp.experts"
        for last, ending in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            gate, up, down = (
                torch.stack([tensors[f"{owner}.{i}.{field}.{last}"].float() for i in range(8)])
                for field in ("gate_proj", "up_proj", "down_proj")
            )
            kind = tensors[f"{owner}.0.down_proj.{last}"].dtype
            kept[f"{owner}.gate_up_proj{ending}"] = torch.cat([gate, up], dim=1).to(kind)
            kept[f"{owner}.down_proj{ending}"] = down.to(kind)
    return kept


def test_experts_may_be_stacked(qwen: Released, tmp_path: Path) -> None:
    model = rewritten(qwen, tmp_path, stacked)
    assert all(map(torch.equal, seen(model), together(qwen.network(), prefill())))
    assert stored_formats(str(tmp_path)).experts == ("fp8",)
    read, other = (held(one, "fp8") for one in (model, qwen.model))
    for name in experts_of(read):
        pair = [one.experts(name, nn.Module())(5) for one in (read, other)]
        assert all((getattr(pair[0], field) == getattr(pair[1], field)).all() for field in ("gate", "up", "down"))


def held(model: ModelSpec, precision: Any) -> FilledNetwork:
    """A folder to be packed in `precision`, whether kernels know it or not."""
    plan = WeightPlan(original=False, packing=Packing(precision=precision), dense=precision)
    return FilledNetwork(open_source(model), plan)


def experts_of(folder: FilledNetwork) -> list[str]:
    return [name for name, module in folder.network.named_modules() if is_experts(module)]


@pytest.mark.parametrize("name", few_of(RELEASES, FEW))
def test_blocks_reach_packing_where_they_are_stored_in_its_precision(name: str, tmp_path: Path) -> None:
    one = write("glm_4_5_air", RELEASES[name], tmp_path)
    kind, numbers = one.release.format, one.network().state_dict()
    read, other = held(one.model, kind), held(one.model, "int8")
    for place in experts_of(read):
        assert isinstance(read.experts(place, nn.Module())(3), ExpertBlocks)
        assert not isinstance(other.experts(place, nn.Module())(3), ExpertBlocks)
    assert read.linear_blocks is not None
    assert other.linear_blocks is None
    linears = {name: one for name, one in read.network.named_modules() if isinstance(one, nn.Linear)}
    blocks = {place: rows for place, module in linears.items() if (rows := read.linear(module)) is not None}
    assert "model.layers.0.mlp.down_proj" in blocks
    assert "lm_head" not in blocks
    for place, rows in blocks.items():
        assert rows.precision == kind
        assert torch.equal(block_numbers(rows.read(), kind).bfloat16(), numbers[f"{place}.weight"])


def test_rows_that_end_within_a_block_are_filled_up(tmp_path: Path) -> None:
    """The dense layer of GLM-4.5-Air has 10944 columns in FP8."""
    one = write("glm_4_5_air", RELEASES["fp8"], tmp_path, intermediate_size=192)
    assert all(map(torch.equal, seen(one.model), together(one.network(), prefill())))
    read = held(one.model, "fp8")
    rows = read.linear(read.network.get_submodule("model.layers.0.mlp.down_proj"))
    truth = one.network().get_parameter("model.layers.0.mlp.down_proj.weight")
    assert rows is not None and truth.shape[1] == 192
    filled = block_numbers(rows.read(), "fp8").bfloat16()
    assert torch.equal(filled[:, :192], truth) and not filled[:, 192:].any()


@pytest.mark.parametrize("name", ["int4", "fp8", "gptq"])
def test_a_layer_that_a_release_keeps_in_bf16_stays_so(name: str, tmp_path: Path) -> None:
    """Quantised like the others it is several times as far off."""
    release = RELEASES[name]
    one = write("qwen3_30b_a3b", release, tmp_path, lambda key, tensor: ".1." in key and quantised(key, tensor))
    formats = stored_formats(str(one.folder))
    kind = formats.native
    assert kind == release.format
    assert [layer.formats for layer in formats.layers] == [("bf16",) * 3, (kind,) * 3]
    read = held(one.model, kind)
    first, second = ((read.experts(place, nn.Module())(3)) for place in experts_of(read))
    assert isinstance(first, ExpertBlocks) and isinstance(second, ExpertBlocks)
    assert (first.precision, second.precision) == ("bf16", kind)
    truth = one.network().get_parameter("model.layers.0.mlp.experts.down_proj")[3]
    assert (first.down == truth.detach().view(torch.uint16).numpy()).all()


@pytest.mark.parametrize("name", ["fp8", "int4"])
def test_kimi_is_read_with_its_nested_configuration(name: str, tmp_path: Path) -> None:
    one = write("deepseek_v3", RELEASES[name], tmp_path)
    config = json.loads((one.folder / CONFIG).read_text())
    quantisation = config.pop("quantization_config")
    text = config | {"model_type": "kimi_k2", "auto_map": {}, "quantization_config": quantisation}

    def nested(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"language_model.{name}": one for name, one in tensors.items()} | {"vision_tower.a": torch.ones(2)}

    model = rewritten(one, tmp_path / "nested", nested)
    (tmp_path / "nested" / CONFIG).write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    assert inspect_checkpoint(tmp_path / "nested")["model_type"] == "deepseek_v3"
    assert all(map(torch.equal, seen(model), together(one.network(), prefill())))


@pytest.mark.parametrize("content", [0.0, 0.5])
def test_biases_that_gptq_adds_are_left_out_where_they_are_zero(content: float, tmp_path: Path) -> None:
    one = write("qwen3_30b_a3b", RELEASES["gptq"], tmp_path)
    name = "model.layers.0.mlp.experts.0.down_proj.bias"
    model = rewritten(one, tmp_path / "more", lambda tensors: tensors | {name: torch.full((256,), content).half()})
    if content:
        with pytest.raises(ValueError, match=f"no place for {name}"):
            load(model)
    else:
        assert all(map(torch.equal, seen(model), together(one.network(), prefill())))


def test_layers_that_predict_further_tokens_have_no_say(tmp_path: Path) -> None:
    one = write("qwen3_next_80b_a3b", RELEASES["int4"], tmp_path)
    ahead = "mtp.layers.0.mlp.experts.0.down_proj.weight"
    model = rewritten(one, tmp_path / "more", lambda tensors: tensors | {ahead: torch.ones(512, 4096).bfloat16()})
    assert stored_formats(str(model.path)).experts == ("int4_bf16",)
    assert all(map(torch.equal, seen(model), together(one.network(), prefill())))


def test_the_first_layers_are_a_model_and_layers_beyond_are_left_out(qwen: Released) -> None:
    sliced = replace(qwen.model, config=qwen.model.config | {"num_hidden_layers": 1})
    network = plain(qwen.folder, num_hidden_layers=1, quantization_config=FineGrainedFP8Config(dequantize=True))
    assert all(map(torch.equal, seen(sliced), together(network, prefill())))


def test_plain_transformers_runs_the_numbers(qwen: Released) -> None:
    def logits(model: ModelSpec) -> list[Tensor]:
        system = open_transformers(model, HostRole(cores=1))
        system.configure(RunSpec(model=model, workload=decode(), system="transformers"))
        return run(system, 3)

    assert all(map(torch.equal, logits(qwen.model), logits(qwen.truth)))


def test_an_export_has_the_numbers(qwen: Released, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    for name, model in (("a", qwen.model), ("b", qwen.truth)):
        export_gguf(model, tmp_path / f"{name}.gguf", experts="BF16", dense="BF16", say=lambda _line: None)
    one, other = (MappedWeights(read_header(tmp_path / f"{name}.gguf")) for name in "ab")
    assert all(torch.equal(one.read(name), other.read(name)) for name in other.tensors)
    assert stored_formats(str(tmp_path / "a.gguf")).experts == ("bf16",)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
def test_formats_of_a_gguf_file_are_told(kind: Any, qwen: Released, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    export_gguf(qwen.model, tmp_path / "a.gguf", experts=kind, dense="BF16", say=lambda _line: None)
    expected = StoredFormats(experts=(kind.lower(),), dense=(), attention=("bf16",))
    assert stored_formats(str(tmp_path / "a.gguf")) == expected


@pytest.mark.parametrize("name", ["deepseek_v3", "minimax_m2", "qwen3_next_80b_a3b"])
def test_formats_of_a_family_are_told_by_its_roles(name: str, tmp_path: Path) -> None:
    one = write(name, RELEASES["fp8"], tmp_path)
    formats = stored_formats(str(one.folder))
    assert formats.experts == ("fp8",)
    assert formats.dense == {"minimax_m2": ()}.get(name, ("fp8",))
    assert stored_formats(str(one.truth.path)).experts == ("bf16",)


RELEASED = ["deepseek-ai--DeepSeek-V3", "deepseek-ai--DeepSeek-V3.2", "deepseek-ai--DeepSeek-R1"]
RELEASED += ["MiniMaxAI--MiniMax-M2.5", "moonshotai--Kimi-K2-Instruct", "openai--gpt-oss-20b"]


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="no shared data folder next to this checkout")
@pytest.mark.parametrize("name", RELEASED)
def test_what_makers_say_of_their_releases_is_read(name: str, tmp_path: Path) -> None:
    config = json.loads((CONFIGS / f"{name}_config.json").read_text())
    assert read_method(tmp_path, config).name == ("mxfp4" if "gpt-oss" in name else "fp8")
