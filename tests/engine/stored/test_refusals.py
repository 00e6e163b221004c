"""Quantised checkpoints that are damaged or of another kind: one line that names the tensor, before anything loads."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from ktbench.cli import main
from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.stored.headers import read_weights
from ktbench.engine.stored.matrices import StoredTensor
from ktbench.engine.stored.methods import Method
from tests.engine.stored.written import CONFIG, RELEASES, WEIGHTS, Released, write
from tests.engine.tiny import load, tiny_model

EXPERT = "model.layers.0.mlp.experts.3"
DOWN, Q_PROJ = f"{EXPERT}.down_proj", "model.layers.1.self_attn.q_proj"
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a release of Qwen3-MoE, written once."""
    written: dict[str, Released] = {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = write("qwen3_30b_a3b", RELEASES[name], tmp_path_factory.mktemp("release"))
        return written[name].folder

    return folder


def changed(source: Path, folder: Path, change: Change) -> Path:
    """A copy with other tensors."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(held, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def without(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def into(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: make(tensors[name])})


def new(name: str, tensor: Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


def plain_again(tensors: Tensors) -> None:
    """One matrix of an expert in bf16."""
    del tensors[f"{DOWN}.weight_scale_inv"]
    tensors[f"{DOWN}.weight"] = tensors[f"{DOWN}.weight"].bfloat16()


SCALE = f"{DOWN}.weight_scale_inv"
# A release, what is changed, and the tensor and reason that the message names.
BAD: dict[str, tuple[str, Change, str]] = {
    "fp8 without scales": ("fp8", without(SCALE), rf"{DOWN}\.weight holds F8_E4M3 without"),
    "attention without scales": (
        "fp8",
        without(f"{Q_PROJ}.weight_scale_inv"),
        rf"{Q_PROJ}\.weight holds F8_E4M3",
    ),
    "fp8 with scales of rows too few": ("fp8", into(SCALE, lambda one: one[:1]), rf"{re.escape(SCALE)} is .*must be"),
    "fp8 with squares of 64": ("fp8", into(SCALE, lambda one: one.repeat(2, 2)), rf"{re.escape(SCALE)} is .*must be"),
    "fp8 with scales in int": ("fp8", into(SCALE, lambda one: one.int()), rf"{re.escape(SCALE)} .*holds I32"),
    "scales of plain numbers": ("fp8", into(f"{DOWN}.weight", Tensor.bfloat16), rf"no place for {re.escape(SCALE)}"),
    "e5m2": ("fp8", into(f"{DOWN}.weight", lambda one: one.to(torch.float8_e5m2)), rf"{DOWN}\.weight holds F8_E5M2"),
    "mixed formats": ("fp8", plain_again, rf"{DOWN}\.weight in bf16, matrices of one expert"),
    "a bias in fp8": ("fp8", new(f"{DOWN}.bias", torch.ones(4).to(torch.float8_e4m3fn)), r"bias holds F8_E4M3"),
    "int4 without scales": ("int4", without(f"{DOWN}.weight_scale"), rf"{DOWN}\.weight_packed holds I32 without"),
    "int4 with scales in float32": ("int4", into(f"{DOWN}.weight_scale", Tensor.float), rf"{DOWN}\.weight_scale .*F32"),
    "int4 in groups of 16": (
        "int4",
        into(f"{DOWN}.weight_scale", lambda one: one.repeat(1, 2)),
        rf"{DOWN}\.weight_scale is .*multiple of 32",
    ),
    "int4 with zero points": ("int4", new(f"{DOWN}.weight_zero_point", torch.ones(4).int()), "weight_zero_point holds"),
    "gptq without zeros": ("gptq", without(f"{DOWN}.qzeros"), rf"{DOWN}\.qweight holds I32 without {DOWN}\.qzeros"),
    "gptq with other zeros": ("gptq", into(f"{DOWN}.qzeros", lambda one: one[:, 1:]), rf"{DOWN}\.qzeros is .*must be"),
    "gptq, reordered": (
        "gptq, reordered in name only",
        into(f"{DOWN}.g_idx", lambda one: one.flip(0)),
        rf"{DOWN}\.g_idx reorders columns",
    ),
    "gptq, perhaps reordered": (
        "gptq, reordered in name only",
        without(f"{DOWN}.g_idx"),
        rf"{DOWN}\.weight reorders columns",
    ),
    "gptq, reordered without a word": (
        "gptq",
        into(f"{DOWN}.g_idx", lambda one: one.flip(0)),
        rf"{DOWN}\.g_idx reorders columns",
    ),
    "int4, reordered": (
        "int4",
        new(f"{DOWN}.weight_g_idx", torch.arange(256, dtype=torch.int32).flip(0) // 32),
        rf"{DOWN}\.weight_g_idx reorders columns",
    ),
    "gptq, not symmetric": ("gptq", into(f"{DOWN}.qzeros", lambda one: one + 1), rf"{DOWN}\.qzeros has zero points"),
    "no head": ("fp8", without("lm_head.weight"), r"no weights for lm_head\.weight"),
    "awq in gptq's shape": ("awq", into(f"{DOWN}.qweight", lambda one: one.T), rf"{DOWN}\.\w+ is .*must be"),
    "nvfp4 without the scale of all": ("nvfp4", without(f"{DOWN}.weight_scale_2"), rf"{DOWN}\.weight holds U8 without"),
    "nvfp4 with a scale of rows": (
        "nvfp4",
        into(f"{DOWN}.weight_scale_2", lambda one: one.expand(256)),
        rf"{DOWN}\.weight_scale_2 is .*must be",
    ),
    "nvfp4 with scales in bf16": ("nvfp4", into(f"{DOWN}.weight_scale", Tensor.bfloat16), rf"{DOWN}\.weight_scale "),
    "weights that scale activations": ("nvfp4", new(f"{DOWN}.pre_quant_scale", torch.ones(4).int()), "pre_quant_scale"),
}


@pytest.mark.parametrize("what", BAD)
def test_tensors_that_do_not_go_together_are_refused_by_name(
    what: str, folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change, why = BAD[what]
    folder = changed(folders(name), tmp_path / "folder", change)
    with pytest.raises(ValueError, match=why):
        inspect_checkpoint(folder)
    capsys.readouterr()
    assert main(["plan", f"model.path={folder}"]) == 2
    message = capsys.readouterr().err
    assert re.search(why, message)
    assert message.count("\n") == 1


LASTS = ["weight", "weight_scale_inv", "weight_scale", "weight_scale_2", "weight_packed", "weight_global_scale"]
LASTS += ["weight_shape", "qweight", "qzeros", "scales", "g_idx", "gate_up_proj", "gate_up_proj_scale_inv"]
LASTS += ["gate_up_proj_blocks", "gate_up_proj_scales", "input_scale", "bias"]
HEADERS = st.dictionaries(
    st.sampled_from(
        [f"{owner}.{last}" for owner in ("experts.0.up_proj", "experts.0.down_proj", "a") for last in LASTS]
    ),
    st.builds(
        StoredTensor,
        st.just(Path("file")),
        st.sampled_from(["BF16", "F16", "F32", "F8_E4M3", "F8_E8M0", "I32", "U8"]),
        st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 128, 256]), max_size=4).map(tuple),
    ),
)
METHODS_READ = [Method(name=name) for name in ("", "compressed-tensors", "gptq", "awq", "mxfp4")]


@given(headers=HEADERS, method=st.sampled_from(METHODS_READ))
def test_any_headers_are_read_or_refused(headers: dict[str, StoredTensor], method: Method) -> None:
    """What is read is used: nothing that is no plain number is left over."""
    try:
        weights = read_weights(headers, method)
    except ValueError as error:
        assert str(error).startswith("file: ")
        return
    parts = {part for matrix in weights.matrices.values() for part in matrix.parts.values()}
    kinds = {headers[name].kind for name in headers.keys() - parts if not weights.is_beside(name)}
    assert kinds <= {"BF16", "F16", "F32"}
    assert all(len(matrix.shape) in (2, 3) for matrix in weights.matrices.values())


def say(folder: Path, quantisation: Any) -> Path:
    config = json.loads((folder / CONFIG).read_text()) | {"quantization_config": quantisation}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


FP8, INT4, GPTQ, AWQ = (dict(RELEASES[name].config or {}) for name in ("fp8", "int4", "gptq", "awq"))
WEIGHTS_OF = INT4["config_groups"]["group_0"]["weights"]
# What config.json says, and the reason that the message names.
METHODS: dict[str, tuple[Any, str]] = {
    "unknown": ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    "a word": ("int8", "allowed are"),
    "no name": ({"bits": 4}, "allowed are"),
    "other squares": (FP8 | {"weight_block_size": [64, 128]}, r"fp8 with weight_block_size=\[64, 128\]"),
    "e5m2": (FP8 | {"fmt": "e5m2"}, "fp8 with fmt=e5m2"),
    "a format of none": (INT4 | {"format": "marlin-24"}, "format=marlin-24"),
    "rotated": (INT4 | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
    "8 bits": (INT4 | {"config_groups": {"group_0": {"weights": WEIGHTS_OF | {"num_bits": 8}}}}, "num_bits=8"),
    "asymmetric": (
        INT4 | {"config_groups": {"group_0": {"weights": WEIGHTS_OF | {"symmetric": False}}}},
        "symmetric",
    ),
    "groups in a list": (INT4 | {"config_groups": [1]}, "compressed-tensors in terms that are unknown"),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, "gptq with bits=8"),
    "gptq of marlin": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format=marlin"),
    "awq of gemv": (AWQ | {"version": "gemv"}, "awq with version=gemv"),
    "modelopt of int8": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo=W4A8_AWQ"),
}


@pytest.mark.parametrize("what", METHODS)
def test_other_methods_are_refused_by_name(what: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    quantisation, why = METHODS[what]
    folder = say(shutil.copytree(folders("fp8"), tmp_path / "folder"), quantisation)
    with pytest.raises(ValueError, match=why) as refused:
        inspect_checkpoint(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["[]", '{"quantization": 3}', "{", '{"quantization": {"quant_algo": "INT8_SQ"}}'])
def test_other_descriptions_of_modelopt_are_refused(
    content: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders("fp8 by tensors"), tmp_path / "folder")
    (folder / "hf_quant_config.json").write_text(content)
    says = r"hf_quant_config\.json: (is not|holds|quantization)|modelopt with quant_algo=INT8_SQ"
    with pytest.raises(ValueError, match=says):
        inspect_checkpoint(folder)


@pytest.mark.parametrize("name", ["int4", "gptq", "awq"])
def test_int4_that_nothing_describes_is_refused(name: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = say(shutil.copytree(folders(name), tmp_path / "folder"), None)
    with pytest.raises(ValueError, match=r"holds I32, .*quantization_config"):
        inspect_checkpoint(folder)


def test_a_truncated_file_is_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders("fp8"), tmp_path / "folder")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(ValueError, match="truncated or damaged"):
        inspect_checkpoint(folder)


def spoilt(value: float) -> Callable[[Tensor], Tensor]:
    def make(one: Tensor) -> Tensor:
        held = one.float()
        held.view(-1)[-1] = value
        return held.to(one.dtype)

    return make


NAN, INF = float("nan"), float("inf")
# Seen only where weights are read.
NUMBERS: dict[str, tuple[str, Change, str]] = {
    "fp8, a scale is NaN": ("fp8", into(SCALE, spoilt(NAN)), rf"{re.escape(SCALE)} has a scale"),
    "attention, a scale is inf": (
        "fp8",
        into(f"{Q_PROJ}.weight_scale_inv", spoilt(INF)),
        f"{Q_PROJ}.*has a scale",
    ),
    "fp8, a weight is NaN": ("fp8", into(f"{DOWN}.weight", spoilt(NAN)), rf"{DOWN}\.weight has a weight"),
    "int4, a scale is inf": ("int4", into(f"{DOWN}.weight_scale", spoilt(INF)), rf"{DOWN}\.weight_scale has a scale"),
    "int4, another shape": (
        "int4",
        into(f"{DOWN}.weight_shape", lambda one: one + 1),
        rf"{DOWN}\.weight_shape must",
    ),
    "awq, scales beyond half": (
        "awq",
        into(f"{DOWN}.scales", lambda one: torch.full(one.shape, 1e-9, dtype=torch.bfloat16)),
        rf"{DOWN}\.scales has a scale that half",
    ),
    "nvfp4, a scale is NaN": ("nvfp4", into(f"{DOWN}.weight_scale", spoilt(NAN)), rf"{DOWN}\.weight_scale has a scale"),
    "nvfp4, the divisor is 0": (
        "nvfp4 of compressed-tensors",
        into(f"{DOWN}.weight_global_scale", torch.zeros_like),
        rf"{DOWN}\.weight_global_scale has a scale",
    ),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_that_are_none_are_refused_by_name(what: str, folders: Callable[[str], Path], tmp_path: Path) -> None:
    name, change, why = NUMBERS[what]
    folder = changed(folders(name), tmp_path / "folder", change)
    with pytest.raises(ValueError, match=why):
        load(tiny_model(path=str(folder), **sizes(folder)))


def sizes(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / CONFIG).read_text())
    return {key: config[key] for key in ("hidden_size", "intermediate_size", "moe_intermediate_size")}


def test_weights_that_the_model_has_no_place_for_are_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    def more(tensors: Tensors) -> None:
        for last in ("weight", "weight_scale_inv"):
            tensors[f"{EXPERT}.other_proj.{last}"] = tensors[f"{DOWN}.{last}"].clone()

    folder = changed(folders("fp8"), tmp_path / "folder", more)
    with pytest.raises(ValueError, match=r"no place for .*other_proj"):
        load(tiny_model(path=str(folder), **sizes(folder)))


def test_an_expert_that_is_missing_is_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    def fewer(tensors: Tensors) -> None:
        del tensors[f"{DOWN}.weight"], tensors[SCALE]

    folder = changed(folders("fp8"), tmp_path / "folder", fewer)
    with pytest.raises(ValueError, match=rf"no weights for {DOWN}\.weight"):
        load(tiny_model(path=str(folder), **sizes(folder)))


@pytest.mark.parametrize(("key", "value"), [("precision", "fp9"), ("device_precision", "int5")])
def test_a_precision_that_is_none_is_answered_with_the_stored_one(
    key: str, value: str, folders: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders("int4")
    capsys.readouterr()
    assert main(["plan", f"model.path={folder}", f"{key}={value}"]) == 2
    message = capsys.readouterr().err
    assert "int4_bf16" in message
    assert message.count("\n") == 1
