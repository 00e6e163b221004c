"""Tensors of sizes that no model of a configuration has are refused by their headers, before anything loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ktbench.engine.checkpoint import inspect_checkpoint, stored_weights
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.gguf.header import read_header
from ktbench.engine.stored.sizes import require_sizes
from ktbench.spec.shape import moe_shape
from tests.engine.families.zoo import FAMILIES, bare, tiny
from tests.engine.gguf.tinies import restless, saved

_LAYER = "model.layers.1"
# With what the tensor may be: wrong in one size, turned, or flat.
WRONG: dict[str, list[int]] = {
    "model.embed_tokens.weight": [64, 256],
    "lm_head.weight": [128, 128],
    f"{_LAYER}.input_layernorm.weight": [64, 1],
    f"{_LAYER}.self_attn.q_proj.weight": [64, 128],
    f"{_LAYER}.self_attn.o_proj.weight": [128, 64],
    f"{_LAYER}.mlp.gate.weight": [64, 8],
    f"{_LAYER}.mlp.experts.3.gate_proj.weight": [64, 64, 1],
    f"{_LAYER}.mlp.experts.3.up_proj.weight": [4096],
    f"{_LAYER}.mlp.experts.7.down_proj.weight": [32, 128],
}
WRONG_GGUF: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (64, 256),
    "output_norm.weight": (32, 2),
    "blk.0.attn_q.weight": (64, 128),
    "blk.0.attn_output.weight": (128, 64),
    "blk.1.ffn_gate_inp.weight": (64, 8),
    "blk.1.ffn_up_exps.weight": (64, 8, 64),
    "blk.1.ffn_down_exps.weight": (8, 4096, 1),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    saved(restless("qwen3_30b_a3b"), folder)
    return folder


def with_shape(source: Path, folder: Path, name: str, shape: list[int]) -> Path:
    """A copy whose header alone says otherwise; the bytes are as many as before."""
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    begin, end = header[name]["data_offsets"]
    count = 1
    for one in shape:
        count *= one
    assert end - begin == 2 * count and header[name]["shape"] != shape
    header[name]["shape"] = shape
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return folder


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_of_a_wrong_shape_is_refused_before_loading(name: str, whole: Path, tmp_path: Path) -> None:
    folder = with_shape(whole, tmp_path / "wrong", name, WRONG[name])
    with pytest.raises(ValueError) as refused:
        inspect_checkpoint(folder)
    assert name in str(refused.value) and str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_is_refused(name: str) -> None:
    shapes = {key: tuple(held.shape) for key, held in bare(name).state_dict().items()}
    require_sizes(shapes, tiny(name).shape, "")


def test_tensors_of_a_gguf_file_are_held_against_its_configuration(whole: Path, tmp_path: Path) -> None:
    config = inspect_checkpoint(whole)
    file: Any = tmp_path / "model.gguf"
    export_gguf(saved(restless("qwen3_30b_a3b"), tmp_path / "made"), file, experts="Q8_0", dense="Q8_0", say=print)
    shapes = {name: one.shape for name, one in read_header(file).tensors.items()}
    require_sizes(shapes, moe_shape(config), "")
    for name, shape in WRONG_GGUF.items():
        assert shape != shapes[name]
        with pytest.raises(ValueError, match=name):
            require_sizes(shapes | {name: shape}, moe_shape(config), "")


def test_what_names_no_known_tensor_is_not_judged(whole: Path) -> None:
    shapes = stored_weights(str(whole)).shapes
    others = {"model.layers.1.self_attn.q_norm.weight": (3,), "vision.embed_tokens.weight": (3, 3)}
    require_sizes({**shapes, **others}, moe_shape(inspect_checkpoint(whole)), "")
