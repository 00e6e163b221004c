"""GGUF files in super-blocks, whose matrices have formats of their own: every one is packed as it is stored."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktbench.cli import main
from ktbench.engine.gguf.header import aligned, read_header
from ktbench.engine.stored.formats import stored_formats
from ktbench.run.request import read_request
from ktbench.spec.errors import RequestError
from ktbench.spec.run_spec import ModelSpec, RunSpec
from ktbench.spec.step.work import routed_bytes
from tests.engine.engines import FUSED, VECTOR, cell, engine_for, logits, needs_vector, relative
from tests.engine.families.plain import experts_of
from tests.engine.families.zoo import ALL
from tests.engine.gguf.rounding import numbers_of, stored_experts
from tests.engine.gguf.written import Written
from tests.engine.prompts import together
from tests.engine.test_packed_dense import packed_layers
from tests.engine.tiny import decode, prefill

gguf = pytest.importorskip("gguf", reason="the truth about GGUF's formats is its own package")

pytestmark = needs_vector()

# As quantisers of llama.cpp mix them: more bits for down in some layers, and for values.
MIX = {
    r"blk\.\d+\.ffn_(gate|up)_exps\.weight": "Q4_K",
    r"blk\.0\.ffn_down_exps\.weight": "Q6_K",
    r"blk\.1\.ffn_down_exps\.weight": "Q4_K",
    r"blk\.\d+\.attn_(q|k)\.weight": "Q4_K",
    r"blk\.\d+\.attn_v\.weight": "Q6_K",
}
# Types that are packed in the blocks of others.
IQ_MIX = {
    r"blk\.\d+\.ffn_(gate|up)_exps\.weight": "IQ2_XXS",
    r"blk\.0\.ffn_down_exps\.weight": "IQ3_S",
    r"blk\.1\.ffn_down_exps\.weight": "IQ2_S",
    r"blk\.\d+\.attn_(q|k)\.weight": "IQ1_S",
    r"blk\.\d+\.attn_v\.weight": "Q5_0",
}
# Half-precision scales of a block by their places, and numbers that make weights of about 0.05.
SCALES = {"Q4_K": {0: 2**-12, 2: 2**-9}, "Q6_K": {208: 2**-14}, "IQ2_XXS": {0: 2**-10}, "IQ2_S": {0: 2**-10}}
SCALES |= {"IQ3_S": {0: 2**-12}, "IQ1_S": {0: 2**-8}, "Q5_0": {0: 2**-8}}
TENSORS = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
PROJECTIONS = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj"}
WIDE = {"hidden_size": 256, "intermediate_size": 256}


def block_sizes(kind: str) -> tuple[int, int]:
    """Weights of a block and its bytes."""
    depth, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return depth, size


def random_blocks(rng: np.random.Generator, kind: str, weights: int) -> bytes:
    depth, size = block_sizes(kind)
    blocks = rng.integers(0, 256, (weights // depth, size), np.uint8)
    for at, scale in SCALES[kind].items():
        blocks[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    return blocks.tobytes()


def mixed(file: Path, new: Path, mix: dict[str, str] = MIX) -> dict[str, torch.Tensor]:
    """The file with random blocks of other types; what these stand for."""
    rng, written, held = np.random.default_rng(3), [], {}
    header, data = read_header(file), file.read_bytes()
    for info in header.tensors.values():
        kind = next((kind for names, kind in mix.items() if re.fullmatch(names, info.name)), None)
        content = data[info.offset : info.offset + info.nbytes]
        if kind is not None:
            content = random_blocks(rng, kind, int(np.prod(info.shape)))
            blocks = np.frombuffer(content, np.uint8).reshape(-1, block_sizes(kind)[1])
            held[info.name] = torch.from_numpy(numbers_of(blocks, kind)).view(info.shape)
        written.append((info.name, kind or info.kind, info.shape, content))
    whole = Written(metadata=header.metadata, tensors=[one[:3] for one in written]).head()
    for *_, content in written:
        whole = whole.ljust(aligned(len(whole)), b"\0") + content
    new.write_bytes(whole)
    return held


@pytest.fixture(name="model")
def _model(exported: Any, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[ModelSpec, Any]:
    """The file, and a network with what it stands for."""
    model, truth = exported("mixtral_8x7b", "BF16", **ALL, **WIDE)
    held = mixed(Path(str(model.path)), tmp_path / "mixed.gguf", getattr(request, "param", MIX))
    for layer, module in enumerate(experts_of(truth)):
        for i in range(8):
            expert = stored_experts(module, i)
            for field, name in TENSORS.items():
                getattr(expert, field).copy_(held[f"blk.{layer}.{name}.weight"][i])
        for name, projection in PROJECTIONS.items():
            weight = truth.get_parameter(f"model.layers.{layer}.self_attn.{projection}.weight")
            weight.copy_(unpermuted(held[f"blk.{layer}.{name}.weight"], name, truth.config))
    path = str(tmp_path / "mixed.gguf")
    return replace(model, path=path, stored=stored_formats(path).layers), truth


def unpermuted(weight: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    """llama's files have the two halves of each rotated head in turns."""
    if name == "attn_v":
        return weight
    heads = config.num_attention_heads if name == "attn_q" else config.num_key_value_heads
    return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def lean(model: ModelSpec, workload: Any, precision: str = "q4_k", device_precision: str = "q4_k") -> RunSpec:
    options = FUSED | {"packed_dense": True, "precision": precision, "device_precision": device_precision}
    return cell(model, workload, **options)


@pytest.mark.parametrize(
    ("model", "experts", "projections"),
    [
        pytest.param(MIX, [("q4_k", "q6_k"), ("q4_k", "q4_k")], ("q4_k", "q6_k"), id="k"),
        pytest.param(IQ_MIX, [("iq2", "iq3_s"), ("iq2", "iq2")], ("iq1", "q8_0"), id="iq"),
    ],
    indirect=["model"],
)
def test_every_matrix_is_packed_as_it_is_stored(model: Any, experts: Any, projections: tuple[str, str]) -> None:
    query, value = projections
    system = engine_for(lean(model[0], decode(), experts[0][0], query))
    operators = [operator.fused.packed for operator in system._components.operators]
    assert [(one.precision, one.down_precision) for one in operators] == experts
    found = {place: layer.projection.matrix.packed.precision for place, layer in packed_layers(system)}
    assert found["model.layers.0.self_attn.q_proj"] == found["model.layers.1.self_attn.k_proj"] == query
    assert found["model.layers.0.self_attn.v_proj"] == value
    assert found["model.layers.0.self_attn.o_proj"] == found["lm_head"] == "bf16"


@pytest.mark.parametrize(
    ("model", "precisions"),
    [pytest.param(MIX, ("q4_k", "q4_k"), id="k"), pytest.param(IQ_MIX, ("iq2", "iq1"), id="iq")],
    indirect=["model"],
)
def test_logits_are_those_of_transformers_on_the_same_numbers(model: Any, precisions: tuple[str, str]) -> None:
    spec, truth = model
    system = engine_for(lean(spec, decode(batch=2), *precisions))
    for workload in (decode(batch=2), prefill(batch=2)):
        assert relative(logits(system, lean(spec, workload, *precisions)), together(truth, workload)) < 0.1


def test_native_is_the_format_of_most_weights(model: Any) -> None:
    path = str(model[0].path)
    assert stored_formats(path).experts == ("q4_k", "q6_k")
    lean_words = [f"model.path={path}", f"{VECTOR.key}=true", "engine.packed_dense=true"]
    spec = read_request(lean_words).parts[0].spec
    assert (spec.precision, spec.device_precision) == ("q4_k", "q4_k")
    base = read_request([f"model.path={path}"]).parts[0].spec
    assert (base.precision, base.device_precision) == ("bf16", "bf16")


def test_another_format_of_super_blocks_is_made_of_their_numbers(model: Any) -> None:
    system = engine_for(lean(model[0], decode(), "q5_k", "bf16"))
    operators = [operator.fused.packed for operator in system._components.operators]
    assert {(one.precision, one.down_precision) for one in operators} == {("q5_k", "q5_k")}


@pytest.mark.parametrize("words", [["precision=iq2"], ["device_precision=iq1", "precision=q4_k"]])
def test_a_format_that_the_file_does_not_have_is_refused(model: Any, words: list[str]) -> None:
    with pytest.raises(RequestError, match="q4_k"):
        read_request([f"model.path={model[0].path}", f"{VECTOR.key}=true", "engine.packed_dense=true", *words])


def test_gate_and_up_in_two_formats_run_rounded(exported: Any, tmp_path: Path) -> None:
    model, _ = exported("mixtral_8x7b", "BF16", **ALL, **WIDE)
    mix = MIX | {r"blk\.\d+\.ffn_up_exps\.weight": "Q6_K"}
    mixed(Path(str(model.path)), tmp_path / "two.gguf", {r"blk\.\d+\.ffn_up_exps\.weight": "Q6_K"} | mix)
    two = replace(model, path=str(tmp_path / "two.gguf"))
    with pytest.raises(ValueError, match="ffn_up_exps"):
        engine_for(lean(two, decode()))
    engine_for(replace(lean(two, decode()), precision="int8"))


@pytest.mark.parametrize(
    ("model", "formats"),
    [
        pytest.param(MIX, [("q4_k", "q4_k", "q6_k"), ("q4_k", "q4_k", "q4_k")], id="k"),
        pytest.param(IQ_MIX, [("iq2", "iq2", "iq3_s"), ("iq2", "iq2", "iq2")], id="iq"),
    ],
    indirect=["model"],
)
def test_the_plan_counts_every_layer_in_its_own_formats(
    model: Any, formats: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes are those of the file's tensors, and of what is packed of them."""
    path = str(model[0].path)
    layers = stored_formats(path).layers
    assert [layer.formats for layer in layers] == formats
    tensors = read_header(path).tensors
    held = [sum(tensors[f"blk.{n}.{name}.weight"].nbytes for name in TENSORS.values()) for n in range(len(formats))]
    assert [layer.nbytes for layer in layers] == held
    words = [f"model.path={path}", f"{VECTOR.key}=true", f"precision={formats[0][0]}"]
    (part,) = read_request(words).parts
    system = engine_for(lean(model[0], decode(), formats[0][0], "bf16"))
    packed = [operator.fused.packed.nbytes for operator in system._components.operators]
    assert sum(packed) <= routed_bytes(part.spec) * 1.01
    assert routed_bytes(part.spec) == pytest.approx(sum(packed), rel=0.02)
    assert main(["plan", *words]) == 0
    assert f"{sum(held):,} bytes" in capsys.readouterr().out
