"""Models read from GGUF files: their numbers against the network that was exported, quantised by the gguf package."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from ktbench.engine.checkpoint import inspect_checkpoint
from ktbench.engine.forms import ExpertBlocks, ExpertMatrices, is_experts, read_form
from ktbench.engine.gguf.export import export_gguf
from ktbench.engine.gguf.header import aligned, read_header
from ktbench.engine.gguf.reading import numbers
from ktbench.engine.loading.network import FilledNetwork, open_source
from ktbench.engine.weight_plan import Packing, WeightPlan
from ktbench.spec.run_spec import ModelSpec
from tests.drawing import covering
from tests.engine.gguf.rounding import (
    MATRICES,
    PRECISIONS,
    UNQUANTISED,
    blocks_of,
    numbers_of,
    quantise,
    quantised,
    tensors_in,
)
from tests.engine.gguf.tinies import FAMILIES, tiny_of
from tests.engine.gguf.written import METADATA, Written
from tests.engine.prompts import together
from tests.engine.tiny import decode, load, prefill, run, spec


@pytest.mark.parametrize(("name", "kind"), covering(product(FAMILIES, ("BF16", "Q8_0", "Q4_0", "MXFP4"))))
def test_network_of_a_file_is_the_one_that_was_exported(name: str, kind: str, exported: Any) -> None:
    model, truth = exported(name, kind)
    quantise(truth, kind)
    read = FilledNetwork(open_source(model), WeightPlan())
    for place, module in read.network.named_modules():
        if is_experts(module):
            read.experts(place, module)
    seen, expected = read.network.state_dict(), truth.state_dict()
    assert seen.keys() == expected.keys()
    assert not [key for key, tensor in expected.items() if not torch.equal(seen[key], tensor.to(seen[key].dtype))]
    for (key, buffer), (_, other) in zip(read.network.named_buffers(), truth.named_buffers(), strict=True):
        assert torch.equal(buffer, other.to(buffer.dtype)), key


@pytest.mark.parametrize("name", FAMILIES)
def test_base_on_a_file_gives_the_logits_of_the_slice(name: str, tmp_path: Path) -> None:
    model = tiny_of(name)
    export_gguf(model, tmp_path / "model.gguf", experts="BF16", dense="BF16", say=lambda _line: None)
    stored = replace(model, path=str(tmp_path / "model.gguf"))
    assert inspect_checkpoint(tmp_path / "model.gguf") == model.config
    logits = []
    for one in (model, stored):
        system = load(one)
        system.configure(spec(one, decode(batch=2)))
        logits.append(run(system, 3))
    assert all(map(torch.equal, *logits))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
def test_base_on_quantised_weights_gives_the_logits_of_transformers(kind: str, exported: Any) -> None:
    model, truth = exported("deepseek_v3", kind)
    quantise(truth, kind)
    # Transformers reads what corrects routers in float32.
    for module in truth.modules():
        if (bias := getattr(module, "e_score_correction_bias", None)) is not None:
            module.e_score_correction_bias = bias.float()
    system = load(model)
    for workload in (decode(), prefill()):
        system.configure(spec(model, workload))
        assert all(map(torch.equal, run(system, workload.steps), together(truth, workload)))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("name", ["mixtral_8x7b", "gpt_oss_20b"])
def test_experts_go_to_their_packing_as_blocks_where_it_is_of_their_type(name: str, kind: str, exported: Any) -> None:
    model, truth = exported(name, kind)
    for precision in ("q8_0", "q4_0", "mxfp4", "int8"):
        plan = WeightPlan(original=False, packing=Packing(precision=precision))  # type: ignore[arg-type]
        read = FilledNetwork(open_source(model), plan)
        for place, module in read.network.named_modules():
            if not is_experts(module):
                continue
            expert = read.experts(place, module)(3)
            assert all(parameter.is_meta for parameter in module.parameters())
            original = truth.get_submodule(place)
            expected = read_form(original).matrices(original, 3)
            require_expert(expert, expected, kind, in_blocks=precision == PRECISIONS[kind])


def require_expert(expert: ExpertMatrices | ExpertBlocks, expected: ExpertMatrices, kind: Any, in_blocks: bool) -> None:
    assert isinstance(expert, ExpertBlocks) == in_blocks
    for field in MATRICES:
        seen, original = getattr(expert, field), getattr(expected, field)
        if in_blocks:
            assert np.array_equal(seen, blocks_of(original, kind))
        else:
            assert torch.equal(seen, quantised(original, kind).bfloat16())
    for one, other in zip(expert.biases or (), expected.biases or (), strict=True):
        assert torch.equal(one, other.float())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v2_lite", "qwen2_57b_a14b", "qwen3_next_80b_a3b"])
def test_blocks_of_linear_layers_are_in_the_order_of_their_rows(name: str, kind: str, exported: Any) -> None:
    model, truth = exported(name, kind)
    for precision in ("q8_0", "q4_0", "mxfp4", None):
        read = FilledNetwork(open_source(model), WeightPlan(dense=precision))  # type: ignore[arg-type]
        for place, module in read.network.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            seen, held = read.linear(module), truth.get_parameter(f"{place}.weight")
            if precision != PRECISIONS[kind] or f"{place}.weight".endswith(UNQUANTISED):
                assert seen is None
            else:
                assert seen is not None
                assert seen.precision == precision
                assert np.array_equal(seen.read(), blocks_of(held, kind))


@pytest.mark.parametrize("is_tied", [True, False])
def test_head_is_tied_where_the_file_has_none(is_tied: bool, exported: Any) -> None:
    """A file may have a head for a model that was tied: its embedding, rounded otherwise."""
    model, _ = exported("mixtral_8x7b", "BF16")
    config = model.config | {"tie_word_embeddings": True}
    model = rewritten(model, lambda t: is_tied and t.pop("output.weight"), {"ktbench.config": json.dumps(config)})
    config = inspect_checkpoint(str(model.path))
    assert config["tie_word_embeddings"] == is_tied
    network = FilledNetwork(open_source(replace(model, config=config)), WeightPlan()).network
    head, embedding = (network.get_parameter(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    assert (head is embedding) == is_tied


def test_float_types_are_read(exported: Any) -> None:
    model, truth = exported("qwen3_30b_a3b", "F16")
    name = "model.layers.1.self_attn.q_proj.weight"
    seen = FilledNetwork(open_source(model), WeightPlan()).network.get_parameter(name)
    assert torch.equal(seen, truth.get_parameter(name).half().bfloat16())


@given(rows=hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 4)).map(lambda s: (s[0], s[1] * 34 * 18))))
@pytest.mark.parametrize(("kind", "block_bytes"), [("Q8_0", 34), ("Q4_0", 18), ("MXFP4", 17)])
def test_any_block_stands_for_what_the_gguf_package_says(kind: Any, block_bytes: int, rows: Any) -> None:
    blocks = rows.reshape(-1, block_bytes)
    if kind == "MXFP4":
        blocks[blocks[:, 0] == 255, 0] = 127  # NaN in e8m0, which the package does not know
    else:
        scales = blocks[:, :2].view(np.float16)
        scales[~np.isfinite(scales)] = 0.5
    assert np.array_equal(numbers(rows, kind).numpy(), numbers_of(rows, kind))


def split(file: Path, folder: Path, count: int) -> Path:
    """The file in so many parts; gives the first."""
    data, infos = file.read_bytes(), list(read_header(file).tensors.values())
    for number in range(count):
        mine = infos[number::count]
        metadata = (dict(read_header(file).metadata) if number == 0 else {}) | {"split.no": number}
        written = Written(metadata=metadata | {"split.count": count}, tensors=[(i.name, i.kind, i.shape) for i in mine])
        whole = written.head()
        for info in mine:
            whole = whole.ljust(aligned(len(whole)), b"\0") + data[info.offset : info.offset + info.nbytes]
        (folder / f"part-{number + 1:05}-of-{count:05}.gguf").write_bytes(whole)
    return folder / f"part-00001-of-{count:05}.gguf"


def test_a_file_in_parts_gives_the_logits_of_the_whole(exported: Any, tmp_path: Path) -> None:
    model, _ = exported("qwen3_30b_a3b", "MXFP4")
    logits = []
    for path in (model.path, str(split(Path(model.path), tmp_path, 3))):
        one = replace(model, path=path)
        system = load(one)
        system.configure(spec(one, decode(batch=2)))
        logits.append(run(system, 3))
    assert all(map(torch.equal, *logits))


def rewritten(model: ModelSpec, change: Callable[[Any], Any], metadata: Any = METADATA) -> ModelSpec:
    """A file with the header of another one, its tensors changed; content does not matter."""
    tensors = tensors_in(str(model.path))
    change(tensors)
    listed = [(name, kind, shape) for name, (kind, shape) in tensors.items()]
    path = Path(model.path).with_name("changed.gguf")
    path.write_bytes(Written(metadata=metadata, tensors=listed).whole())
    return replace(model, path=str(path))


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t.pop("blk.1.attn_q.weight"), "has no tensor blk.1.attn_q.weight"),
    (lambda t: t.pop("blk.1.ffn_up_exps.weight"), "has no tensor blk.1.ffn_up_exps.weight"),
    (
        lambda t: t.update({"output_norm.weight": ("F32", (32,))}),
        r"tensor output_norm.weight is \(32,\), the model needs",
    ),
    (
        lambda t: t.update({"blk.0.attn_k.weight": ("F32", (3, 64))}),
        r"tensor blk.0.attn_k.weight is \(3, 64\), the mod",
    ),
    (
        lambda t: t.update({"blk.0.ffn_down_exps.weight": ("F32", (7, 64, 32))}),
        r"tensor blk.0.ffn_down_exps.weight is \(7, 64, 32\), the model needs \(8, 64, 32\)",
    ),
    (lambda t: t.update({"rope_freqs.weight": ("F32", (8,))}), "the model has no tensor for rope_freqs.weight"),
]


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[why[:40] for _, why in WRONG])
def test_file_of_another_model_is_refused_before_it_is_read(change: Any, why: str, exported: Any) -> None:
    model = rewritten(exported("mixtral_8x7b", "BF16")[0], change)
    with pytest.raises(ValueError, match=why) as refused:
        load(model)
    assert str(refused.value).startswith(f"{model.path}: ")
    assert "\n" not in str(refused.value)


def test_layers_that_predict_further_tokens_are_left_out(exported: Any) -> None:
    model = rewritten(
        exported("glm_4_5_air", "BF16")[0], lambda t: t.update({"blk.3.nextn.enorm.weight": ("F32", (4,))})
    )
    assert model.shape.layers == 3
    FilledNetwork(open_source(model), WeightPlan())


def test_damaged_file_is_refused_at_load_as_well(exported: Any, tmp_path: Path) -> None:
    model, _ = exported("mixtral_8x7b", "BF16")
    file = tmp_path / "cut.gguf"
    file.write_bytes(Path(model.path).read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"cut\.gguf: truncated, holds"):
        load(replace(model, path=str(file)))
