"""Checkpoint folders: whole ones give the logits of Transformers, others are refused before anything loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.load import load
from ktbench.engine.weight_plan import Packing
from tests.engine.test_base import transformers_decode, transformers_prefill
from tests.engine.tiny import PACKABLE, decode, plain_transformers, prefill, run, spec, tiny_model

FAMILIES = ["deepseek_v2_lite", "deepseek_v3", "glm_4_5_air", "gpt_oss_20b", "minimax_m2", "mixtral_8x7b"]
FAMILIES += ["qwen2_57b_a14b", "qwen3_30b_a3b"]


def saved(folder: Path, name: str = "qwen3_30b_a3b", shard: str = "5GB") -> Path:
    plain_transformers(tiny_model(name)).save_pretrained(folder, max_shard_size=shard)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_checkpoint_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_model(name, path=str(saved(tmp_path, name)))
    assert inspect_checkpoint(tmp_path)["model_type"] == model.config["model_type"]
    network = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, experts_implementation="eager")
    system = load(model)
    for workload, truth in ((decode(), transformers_decode), (prefill(), transformers_prefill)):
        system.configure(spec(model, workload))
        assert all(map(torch.equal, run(system, workload.steps), truth(network, workload)))


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "deepseek_v3"])
def test_packed_checkpoint_equals_packed_slice(name: str, tmp_path: Path) -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")
    if missing := kernels.grants()["avx512"]:
        pytest.skip(f"avx512: {missing}")
    assert name in PACKABLE
    logits = []
    for path in (None, str(saved(tmp_path, name))):
        model = tiny_model(name, path=path)
        system = load(model, keep_original=False, packing=Packing())
        system.configure(spec(model, decode(), avx512=True))
        logits.append(run(system, 3))
    assert all(map(torch.equal, *logits))


def test_sharded_checkpoint_loads(tmp_path: Path) -> None:
    folder = saved(tmp_path, shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = tiny_model(path=str(folder))
    load(model).configure(spec(model, decode()))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def quantised(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def truncated_in_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def longer(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"0")


def no_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:12] = b"abcd"
    file.write_bytes(content)


def header_without_offsets(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((16).to_bytes(8, "little") + b'{"a": {"b": 12}}')


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def index_without_map(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")


def index_of_numbers(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": 1}}')


BAD = [
    (no_config, "no config.json there"),
    (broken_config, "config.json: not valid JSON"),
    (list_config, "config.json: holds list"),
    (quantised, "weights quantised by fp8, allowed are bf16"),
    (truncated, r"model.safetensors: truncated, holds [\d,]+ of [\d,]+ bytes"),
    (truncated_in_header, "model.safetensors: truncated, its header does not fit"),
    (empty, "model.safetensors: truncated"),
    (longer, "model.safetensors: damaged, holds"),
    (no_header, "model.safetensors: damaged, its header"),
    (header_without_offsets, "model.safetensors: damaged, its header"),
    (pickled, "pickles are never read"),
    (no_weights, "no weights there"),
    (missing_shard, "model-00001-of-00002.safetensors: named by model.safetensors.index.json but missing"),
    (index_without_map, "has no weight_map"),
    (index_of_numbers, "has no weight_map"),
]


@pytest.mark.parametrize(("spoil", "why"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_spoilt_folder_is_refused_in_one_line(spoil: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    spoil(saved(tmp_path))
    for refuse in (inspect_checkpoint, lambda path: load(tiny_model(path=str(path)))):
        with pytest.raises(ValueError, match=why) as refused:
            refuse(tmp_path)
        assert str(tmp_path) in str(refused.value)
        assert "\n" not in str(refused.value)


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


@pytest.mark.parametrize("module", ["checkpoint", "support", "protocol", "roles", "weight_plan"])
def test_what_runs_before_loading_imports_neither_torch_nor_transformers(module: str) -> None:
    code = f"import sys, ktbench.engine.{module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
