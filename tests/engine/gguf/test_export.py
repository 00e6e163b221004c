"""Exported files against the network, against `gguf`'s own names and rounding, and run by llama.cpp."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.gguf import export
from ktbench.engine.gguf.export import MISSING, export_gguf, kept_file, no_file, weights_digest
from ktbench.engine.gguf.families import GgufType, family_of
from ktbench.engine.loading.source import WeightSource
from ktbench.spec.peers import PeerSpec
from ktbench.spec.run_spec import ModelSpec
from tests.drawing import covering
from tests.engine.families.plain import build
from tests.engine.gguf.files import expected, gguf, numbers, tensors, written
from tests.engine.gguf.tinies import FAMILIES, restless, saved, tiny_of
from tests.tiny import tiny_spec

SPEC = tiny_spec(system="llama.cpp", precision="int8", device_precision="bf16", peer=PeerSpec(exports="kept"))


def test_its_name_tells_model_types_and_numbers() -> None:
    file = kept_file(SPEC)
    assert (file.experts, file.dense) == ("Q8_0", "BF16")
    assert file.weights == weights_digest(SPEC.model, "Q8_0", "BF16")
    assert file.path == Path("kept") / f"tiny-2-layers-Q8_0-BF16-{file.weights[:12]}.gguf"


def test_precisions_of_one_type_share_a_file_and_other_numbers_have_another() -> None:
    same = replace(SPEC, precision="q8_0")
    seeded = replace(SPEC, model=replace(SPEC.model, seed=1))
    assert kept_file(same) == kept_file(SPEC)
    assert kept_file(seeded).path != kept_file(SPEC).path


def test_a_model_that_is_a_file_is_run_as_it_is() -> None:
    model = ModelSpec(name="m", config=SPEC.model.config, full_layers=2, full_vocab=256, path="there/m.gguf")
    file = kept_file(replace(SPEC, model=model))
    assert (file.path, file.weights) == (Path("there/m.gguf"), None)
    assert no_file(replace(SPEC, model=model)) == ""


def test_what_cannot_be_written_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SPEC.model.config | {"model_type": "olmoe"}
    assert "olmoe" in no_file(replace(SPEC, model=replace(SPEC.model, config=config)))
    assert no_file(tiny_spec(system="transformers")) == ""
    monkeypatch.setattr(export, "has_gguf", lambda: False)
    assert no_file(SPEC) == MISSING


TYPES: tuple[GgufType, ...] = ("BF16", "F16", "Q8_0", "Q4_0", "MXFP4")


def rounded(tensor: Tensor, kind: Any) -> NDArray[np.float32]:
    return gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), kind), kind)


@pytest.mark.parametrize(("name", "kind"), covering(product(FAMILIES, TYPES)))
def test_every_tensor_is_the_network_s(name: str, kind: GgufType, tmp_path: Path) -> None:
    model = tiny_of(name)
    network = build(model).requires_grad_(False)
    wanted, found = dict(expected(network, model.config)), tensors(written(model, tmp_path, kind))
    assert sorted(found) == sorted(wanted)
    for key, tensor in found.items():
        assert np.array_equal(numbers(tensor), rounded(wanted[key], tensor.tensor_type)), key


@pytest.mark.parametrize("name", FAMILIES)
def test_types_follow_what_a_tensor_is(name: str, tmp_path: Path) -> None:
    found = tensors(written(tiny_of(name), tmp_path, "Q4_0", "Q8_0"))
    for key, tensor in found.items():
        kind = tensor.tensor_type.name
        if "_exps.weight" in key:
            assert kind == "Q4_0"
        elif key in ("token_embd.weight",) or "attn_k_b" in key or "attn_v_b" in key:
            assert kind == "BF16"
        elif any(word in key for word in ("norm", "bias", "gate_inp", "sinks", "ssm_a", "conv1d")):
            assert kind == "F32"
        else:
            assert kind == "Q8_0"


def test_metadata_say_whose_numbers_they_are(tmp_path: Path) -> None:
    model = tiny_of("qwen3_30b_a3b")
    fields = gguf.GGUFReader(written(model, tmp_path, "Q8_0", "BF16")).fields
    lines = {key: field.contents() for key, field in fields.items()}
    assert json.loads(lines["ktbench.config"]) == model.config
    assert lines["ktbench.weights"] == weights_digest(model, "Q8_0", "BF16")
    assert lines["tokenizer.ggml.tokens"] == [f"▁{token}" for token in range(256)]
    assert (lines["qwen3moe.vocab_size"], lines["qwen3moe.expert_count"]) == (256, 8)


def test_a_tied_head_is_written_like_any_other(tmp_path: Path) -> None:
    model = tiny_of("qwen3_30b_a3b", tie_word_embeddings=True)
    found = tensors(written(model, tmp_path))
    assert np.array_equal(found["output.weight"].data, found["token_embd.weight"].data)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("as_on_the_hub", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_gives_its_own_numbers(name: str, as_on_the_hub: bool, tmp_path: Path) -> None:
    network = restless(name)
    model = saved(network, tmp_path / "checkpoint", save_original_format=as_on_the_hub)
    found = tensors(written(model, tmp_path))
    wanted = dict(expected(network, tiny_of(name).config))
    assert sorted(found) == sorted(wanted)
    for key, tensor in found.items():
        assert np.array_equal(numbers(tensor), wanted[key].float().numpy()), key


def test_a_checkpoint_s_tokenizer_is_reported_as_left_out(tmp_path: Path) -> None:
    model = saved(restless("qwen3_30b_a3b"), tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "tokenizer.json").write_text("{}")
    lines: list[str] = []
    export_gguf(model, tmp_path / "file.gguf", experts="BF16", dense="BF16", say=lines.append)
    assert lines == [
        "note: tokenizer.json is left out; the file works on token ids",
        "wrote model.layers.0.mlp.experts",
        "wrote model.layers.1.mlp.experts",
    ]


def test_routed_experts_never_lie_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.engine.loading import network

    opened: list[WeightSource] = []
    real = network.open_source
    monkeypatch.setattr(network, "open_source", lambda model: opened.append(real(model)) or opened[-1])
    written(tiny_of("gpt_oss_20b"), tmp_path)
    (source,) = opened
    held = {key: tensor.is_meta for key, tensor in source.network.state_dict().items()}
    assert held == {key: ".mlp.experts." in key for key in held}


def test_an_export_that_ends_early_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ktbench.engine.gguf.writing import TensorFile

    seen: list[list[str]] = []

    def interrupted(*_: Any) -> None:
        seen.append([file.name for file in tmp_path.iterdir()])
        raise KeyboardInterrupt

    monkeypatch.setattr(TensorFile, "put_expert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(tiny_of("qwen3_30b_a3b"), tmp_path)
    assert seen == [[".qwen3_30b_a3b-BF16.gguf.part"]]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    model = tiny_of("qwen3_30b_a3b")
    (tmp_path / "qwen3_30b_a3b-BF16.gguf").write_text("mine")
    with pytest.raises(ValueError, match="is there already, name a new file"):
        written(model, tmp_path)
    assert (tmp_path / "qwen3_30b_a3b-BF16.gguf").read_text() == "mine"


def test_rows_that_are_no_whole_blocks_are_named(tmp_path: Path) -> None:
    model = tiny_of("qwen3_30b_a3b", moe_intermediate_size=48)
    with pytest.raises(ValueError) as refused:
        written(model, tmp_path, "Q4_0", "BF16")
    assert str(refused.value) == (
        "blk.0.ffn_down_exps.weight as Q4_0: rows of 48 weights, must be a multiple of 32"
    )  # fmt: skip
    written(model, tmp_path, "BF16")


def test_a_disk_that_is_too_small_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.shutil, "disk_usage", lambda _: _Disk)
    with pytest.raises(ValueError, match=r"needs 0\.0 GiB, 0\.0 GiB are free there"):
        written(tiny_of("qwen3_30b_a3b"), tmp_path)
    assert list(tmp_path.iterdir()) == []


class _Disk:
    free = 1000


def test_weights_that_a_checkpoint_lacks_or_has_otherwise_are_named(tmp_path: Path) -> None:
    model = saved(restless("qwen3_30b_a3b"), tmp_path / "checkpoint")
    deeper = replace(model, config=model.config | {"num_hidden_layers": 3}, full_layers=3)
    with pytest.raises(ValueError, match=r"no weights for model\.layers\.2\.mlp\.experts\.gate_up_proj"):
        written(deeper, tmp_path)
    wider = replace(model, config=model.config | {"intermediate_size": 96, "vocab_size": 512})
    with pytest.raises(ValueError, match=r"tensor \S+ is \(256, 64\), the model needs \(512, 64\)"):
        written(wider, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_the_digest_is_of_the_numbers(tmp_path: Path) -> None:
    model = tiny_of("qwen3_30b_a3b")
    digest = weights_digest(model, "Q4_0", "BF16")
    assert digest == weights_digest(replace(model, name="other"), "Q4_0", "BF16")
    others = [
        weights_digest(model, "Q8_0", "BF16"),
        weights_digest(model, "Q4_0", "Q8_0"),
        weights_digest(replace(model, seed=1), "Q4_0", "BF16"),
        weights_digest(tiny_of("qwen3_30b_a3b", vocab_size=512), "Q4_0", "BF16"),
    ]
    stored = saved(restless("qwen3_30b_a3b"), tmp_path / "checkpoint")
    others.append(weights_digest(stored, "Q4_0", "BF16"))
    os.utime(tmp_path / "checkpoint" / "model.safetensors", (1, 1))
    others.append(weights_digest(stored, "Q4_0", "BF16"))
    assert len({digest, *others}) == 7


def test_a_digest_needs_neither_pytorch_nor_gguf() -> None:
    code = "import sys; import ktbench.engine.gguf.export; sys.exit(bool({'torch', 'gguf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_configuration_as_on_the_hub_is_completed() -> None:
    """Rotary parameters lie outside of `rope_parameters`, and what is the family's default is left out."""
    from ktbench.engine.gguf.export import complete_config

    config = tiny_of("deepseek_v3").config | {"rope_theta": 5000.0}
    yarn = config.pop("rope_parameters")
    config["rope_scaling"] = {"type": "yarn"} | {key: yarn[key] for key in yarn if not key.startswith("rope_")}
    del config["norm_topk_prob"], config["hidden_act"]
    whole = complete_config(config)
    metadata = family_of(whole).metadata(whole)
    assert metadata["deepseek2.rope.freq_base"] == 5000.0
    assert metadata["deepseek2.rope.scaling.type"] == "yarn"
    assert metadata["deepseek2.rope.scaling.factor"] == 40.0
    assert metadata["deepseek2.expert_weights_norm"] is True
