"""Checkpoint folders: whole ones give the logits of Transformers, others are refused before anything loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.weight_plan import Packing
from tests.engine.engines import FUSED, needs_vector
from tests.engine.families.plain import build
from tests.engine.prompts import together
from tests.engine.tiny import PACKABLE, decode, load, prefill, run, spec, tiny_model

FAMILIES = ["deepseek_v2_lite", "deepseek_v3", "glm_4_5_air", "gpt_oss_20b", "minimax_m2", "mixtral_8x7b"]
FAMILIES += ["qwen2_57b_a14b", "qwen3_30b_a3b"]


def saved(folder: Path, name: str = "qwen3_30b_a3b", shard: str = "5GB") -> Path:
    build(tiny_model(name)).save_pretrained(folder, max_shard_size=shard)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_checkpoint_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_model(name, path=str(saved(tmp_path, name)))
    assert inspect_checkpoint(tmp_path)["model_type"] == model.config["model_type"]
    network = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, experts_implementation="eager")
    system = load(model)
    for workload in (decode(), prefill()):
        system.configure(spec(model, workload))
        assert all(map(torch.equal, run(system, workload.steps), together(network, workload)))


@needs_vector()
@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v3"])
def test_packed_checkpoint_equals_packed_slice(name: str, tmp_path: Path) -> None:
    assert name in PACKABLE
    logits = []
    for path in (None, str(saved(tmp_path, name))):
        model = tiny_model(name, path=path)
        system = load(model, keep_original=False, packing=Packing())
        system.configure(spec(model, decode(), **FUSED))
        logits.append(run(system, 3))
    assert all(map(torch.equal, *logits))


def test_sharded_checkpoint_loads(tmp_path: Path) -> None:
    folder = saved(tmp_path, shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = tiny_model(path=str(folder))
    load(model).configure(spec(model, decode()))


def moved(folder: Path, name: str, change: Callable[[dict[str, str], str, str], None]) -> Path:
    """A checkpoint in shards whose index, by `change`, says something else of `name` and the shard that lacks it."""
    index = saved(folder, shard="100KB") / INDEX
    content = json.loads(index.read_text())
    other = next(file for file in sorted(set(content["weight_map"].values())) if file != content["weight_map"][name])
    change(content["weight_map"], name, other)
    index.write_text(json.dumps(content))
    return folder


def test_index_that_names_another_shard_is_refused(tmp_path: Path) -> None:
    def change(places: dict[str, str], name: str, other: str) -> None:
        places[name] = other

    with pytest.raises(ValueError, match=r"'lm_head\.weight' is not in model-0000\d-of-"):
        inspect_checkpoint(moved(tmp_path, "lm_head.weight", change))


def test_index_that_names_a_tensor_of_no_shard_is_refused(tmp_path: Path) -> None:
    def change(places: dict[str, str], name: str, other: str) -> None:
        places["more"] = other

    with pytest.raises(ValueError, match=r"'more' is not in model-0000\d-of-"):
        inspect_checkpoint(moved(tmp_path, "lm_head.weight", change))


def test_tensor_that_two_shards_have_is_refused(tmp_path: Path) -> None:
    def change(places: dict[str, str], name: str, other: str) -> None:
        held = load_file(tmp_path / other) | {name: load_file(tmp_path / places[name])[name] + 1}
        save_file(held, tmp_path / other, metadata={"format": "pt"})

    with pytest.raises(ValueError, match=r"lm_head\.weight is in model-0000\d-of-0000\d\.safetensors, too"):
        inspect_checkpoint(moved(tmp_path, "lm_head.weight", change))


CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
Change = Callable[[bytes], bytes | None]


def in_shards(index: object) -> dict[str, Change]:
    return {WEIGHTS: lambda held: None, INDEX: lambda held: json.dumps(index).encode()}


def safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


# What becomes of files, by name: their content, or None where they are gone.
BAD: dict[str, tuple[dict[str, Change], str]] = {
    "no config": ({CONFIG: lambda held: None}, "no config.json there"),
    "broken config": ({CONFIG: lambda held: b'{"model_type": '}, "config.json: is not JSON"),
    "config is a list": ({CONFIG: lambda held: b"[]"}, "config.json: holds list"),
    "quantised": (
        {CONFIG: lambda held: json.dumps(json.loads(held) | {"quantization_config": {"quant_method": "hqq"}}).encode()},
        "weights quantised by hqq, allowed are bf16",
    ),
    "quantised, its text model": (
        {CONFIG: lambda held: json.dumps({"text_config": {"quantization_config": {"quant_method": "hqq"}}}).encode()},
        "weights quantised by hqq, allowed are bf16",
    ),
    "quantised, said elsewhere": ({"hf_quant_config.json": lambda held: b"{}"}, "weights quantised by modelopt"),
    "truncated": ({WEIGHTS: lambda held: held[:-1]}, "model.safetensors: truncated or damaged"),
    "truncated in the header": ({WEIGHTS: lambda held: held[:20]}, "model.safetensors: truncated or damaged"),
    "empty": ({WEIGHTS: lambda held: b""}, "model.safetensors: truncated or damaged"),
    "longer": ({WEIGHTS: lambda held: held + b"0"}, "model.safetensors: truncated or damaged"),
    "no header": ({WEIGHTS: lambda held: held[:8] + b"abcd" + held[12:]}, "model.safetensors: truncated or damaged"),
    "no offsets": (
        {WEIGHTS: lambda held: (16).to_bytes(8, "little") + b'{"a": {"b": 12}}'},
        "model.safetensors: truncated or damaged",
    ),
    "pickled": ({WEIGHTS: lambda held: None, "pytorch_model.bin": lambda held: b"0"}, "pickles are never read"),
    "no weights": ({WEIGHTS: lambda held: None}, "no weights there"),
    "missing shard": (
        in_shards({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}),
        "model-00001-of-00002.safetensors: named by model.safetensors.index.json but missing",
    ),
    "index without map": (in_shards({}), "has no weight_map"),
    "index of nothing": (in_shards({"weight_map": {}}), "has no weight_map"),
    "index of files elsewhere": (
        in_shards({"weight_map": {"lm_head.weight": "../whole/model.safetensors"}}),
        "names '../whole/model.safetensors', must name files beside it",
    ),
    "index of no names": (in_shards({"weight_map": {"lm_head.weight": "a\0b"}}), "must name files beside it"),
    "nested index": ({WEIGHTS: lambda held: None, INDEX: lambda held: b"[" * 100_000}, "is not JSON"),
    "nested config": ({CONFIG: lambda held: b"[" * 100_000}, "config.json: is not JSON"),
    "long config": ({CONFIG: lambda held: held + b" " * 5_000_000}, "config.json: is longer than"),
    "config of another text": ({CONFIG: lambda held: b"\xff"}, "config.json: is not UTF-8"),
    "nested header": ({WEIGHTS: lambda held: safetensors(b'{"a":' * 3_000)}, "model.safetensors: truncated or damaged"),
    "infinite offsets": (
        {WEIGHTS: lambda held: safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}')},
        "model.safetensors: truncated or damaged",
    ),
    "negative offsets": (
        {WEIGHTS: lambda held: safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}')},
        "model.safetensors: truncated or damaged",
    ),
    "index of numbers": (in_shards({"weight_map": {"lm_head.weight": 1}}), "has no weight_map"),
}


# What loading does not ask: it has the configuration already.
BAD_CONFIGS: dict[str, tuple[dict[str, Change], str]] = {
    "config without a family": ({CONFIG: lambda held: b"{}"}, "config.json: .*has no model_type"),
    "config without layers": (
        {CONFIG: lambda held: held.replace(b'"num_hidden_layers"', b'"num_hidden_layer"')},
        "config.json: .*has none of num_hidden_layers",
    ),
    "text model of no kind": (
        {CONFIG: lambda held: json.dumps(json.loads(held) | {"text_config": 5}).encode()},
        "text_config=5: must be an object",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("what", BAD)
def test_spoilt_folder_is_refused_in_one_line(what: str, whole: Path, tmp_path: Path) -> None:
    changes, why = BAD[what]
    folder = shutil.copytree(whole, tmp_path / "folder")
    for name, change in changes.items():
        file = folder / name
        content = change(file.read_bytes() if file.exists() else b"")
        file.unlink() if content is None else file.write_bytes(content)
    for refuse in (inspect_checkpoint, lambda path: load(tiny_model(path=str(path)))):
        with pytest.raises(ValueError, match=why) as refused:
            refuse(folder)
        assert str(folder) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_configuration_of_no_model_is_refused_by_its_file(what: str, whole: Path, tmp_path: Path) -> None:
    changes, why = BAD_CONFIGS[what]
    folder = shutil.copytree(whole, tmp_path / "folder")
    (folder / CONFIG).write_bytes(changes[CONFIG]((folder / CONFIG).read_bytes()) or b"")
    with pytest.raises(ValueError, match=why) as refused:
        inspect_checkpoint(folder)
    assert str(refused.value).startswith(str(folder / CONFIG))


def test_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        inspect_checkpoint(tmp_path / "nowhere")


def test_checkpoint_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no weights for model\.layers\.1\.self_attn\.q_proj\.weight"):
        load(tiny_model(path=str(tmp_path)))


def logits_of(name: str, path: Path) -> list[torch.Tensor]:
    model = tiny_model(name, path=str(path))
    system = load(model)
    system.configure(spec(model, decode()))
    return run(system, 3)


@pytest.mark.parametrize("nested", [False, True], ids=["kimi_k2", "kimi_k25"])
def test_kimi_is_run_as_deepseek_v3_without_its_own_code(nested: bool, tmp_path: Path) -> None:
    expected = logits_of("deepseek_v3", saved(tmp_path, "deepseek_v3"))
    code = {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    config = json.loads((tmp_path / CONFIG).read_text()) | code | {"model_type": "kimi_k2"}
    if nested:
        config = {"model_type": "kimi_k25", "text_config": config} | code
        weights = {f"language_model.{name}": one for name, one in load_file(tmp_path / WEIGHTS).items()}
        save_file(weights | {"vision_tower.norm.weight": torch.ones(4)}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert inspect_checkpoint(tmp_path)["model_type"] == "deepseek_v3"
    assert all(map(torch.equal, logits_of("deepseek_v3", tmp_path), expected))


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "minimax_m2"])
def test_the_first_layers_of_a_checkpoint_are_a_model(name: str, tmp_path: Path) -> None:
    """What Transformers makes of a configuration with fewer layers and the same files."""
    model = tiny_model(name, path=str(saved(tmp_path, name)))
    sliced = replace(model, config=model.config | {"num_hidden_layers": 1})
    network = AutoModelForCausalLM.from_pretrained(
        tmp_path, num_hidden_layers=1, dtype=torch.bfloat16, experts_implementation="eager"
    )
    system = load(sliced)
    system.configure(spec(sliced, prefill()))
    assert all(map(torch.equal, run(system, 2), together(network, prefill())))


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def resaved(folder: Path, **changes: torch.Tensor) -> Path:
    """A checkpoint with other tensors: changed ones, or new ones."""
    file = saved(folder) / WEIGHTS
    save_file(load_file(file) | changes, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8, torch.int32])
def test_weights_that_are_not_plain_numbers_are_refused_by_name(kind: torch.dtype, tmp_path: Path) -> None:
    """The configuration does not say that they are quantised: scales would be ignored."""
    folder = resaved(tmp_path, **{Q_PROJ: load_file(saved(tmp_path) / WEIGHTS)[Q_PROJ].float().to(kind)})
    with pytest.raises(ValueError, match=rf"{re.escape(Q_PROJ)} holds "):
        inspect_checkpoint(folder)


@pytest.mark.parametrize("name", [f"{Q_PROJ}_scale_inv", "model.layers.0.self_attn.gate.weight", "other.weight"])
def test_tensor_without_a_place_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = resaved(tmp_path, **{name: torch.ones(4)})
    with pytest.raises(ValueError, match=f"no place for {re.escape(name)}"):
        load(tiny_model(path=str(folder)))


@pytest.mark.parametrize("name", ["model.layers.2.mlp.gate.weight", "mtp.norm.weight", "model.rotary_emb.inv_freq"])
def test_tensor_that_a_step_does_not_need_is_left_out(name: str, tmp_path: Path) -> None:
    model = tiny_model(path=str(resaved(tmp_path, **{name: torch.ones(4)})))
    assert model.shape.layers == 2
    load(model).configure(spec(model, decode()))


@pytest.mark.parametrize(
    "module", ["engine.checkpoint", "spec.support", "engine.protocol", "engine.roles", "engine.weight_plan"]
)
def test_what_runs_before_loading_imports_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, ktbench.{module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
