"""Synthetic weights: determined by the seed, of the right scale, held once."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ktbench.engine.synthetic import TransientExperts, WeightPool, skeleton
from ktbench.engine.weight_plan import Packing
from ktbench.spec.run_spec import ModelSpec
from tests.engine.families import zoo as families
from tests.engine.families.plain import build
from tests.engine.tiny import DISTINCT, load, tiny_model


def state(name: str, seed: int = 0, **changes: Any) -> dict[str, torch.Tensor]:
    return dict(build(tiny_model(name, seed=seed, **changes)).state_dict())


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss_20b", "qwen2_57b_a14b"])
def test_equal_seeds_give_equal_weights_and_others_do_not(name: str) -> None:
    one, again, other = state(name), state(name), state(name, seed=1)
    assert all(torch.equal(one[key], again[key]) for key in one)
    matrices = [key for key in one if one[key].dim() >= 2 and not key.endswith("bias")]
    assert not any(torch.equal(one[key], other[key]) for key in matrices)


@pytest.mark.parametrize("name", DISTINCT)
def test_weights_have_the_scale_of_an_initialised_model(name: str) -> None:
    for key, tensor in state(name).items():
        content = tensor.float()
        if "linear_attn" in key and tensor.dim() != 2:  # decays and convolutions: drawn as Transformers does
            assert torch.isfinite(content).all(), key
        elif key.endswith("norm.weight"):
            # Qwen3-Next stores most norms as their distance from one.
            offset = name == "qwen3_next_80b_a3b" and "linear_attn" not in key
            assert (content == (0 if offset else 1)).all(), key
        elif key.endswith("_proj_bias"):  # of experts: they are to matter
            assert content.std() == pytest.approx(0.02, rel=0.15), key
        elif "bias" in key and "router" not in key:
            assert (content == 0).all(), key
        elif tensor.dim() >= 2:
            # Routers: scores of unit variance on normalised inputs of width 64. A single row has few numbers.
            expected = 0.125 if key.endswith(("gate.weight", "router.weight")) and len(tensor) == 8 else 0.02
            assert content.std() == pytest.approx(expected, rel=0.15 if len(tensor) > 1 else 0.5), key


@pytest.mark.parametrize("name", DISTINCT)
def test_buffers_are_those_of_a_model_built_by_transformers(name: str) -> None:
    model = tiny_model(name)
    built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model.config), dtype=torch.bfloat16)
    expected, seen = dict(built.named_buffers()), dict(build(model).named_buffers())
    assert expected.keys() == seen.keys()
    for key, buffer in expected.items():
        assert torch.equal(buffer, seen[key]), key
        assert buffer.dtype == seen[key].dtype, key


def test_tied_head_is_the_embedding() -> None:
    network = build(tiny_model(tie_word_embeddings=True))
    assert network.lm_head.weight is network.model.embed_tokens.weight
    assert network.lm_head.weight.std() > 0


def test_experts_differ_from_each_other_and_between_layers() -> None:
    weights = state("qwen3_30b_a3b")
    gate_up = [weights[f"model.layers.{layer}.mlp.experts.gate_up_proj"][i] for layer in (0, 1) for i in range(8)]
    flat = torch.stack([tensor.flatten().float() for tensor in gate_up])
    correlation = torch.corrcoef(flat) - torch.eye(16)
    assert correlation.abs().max() < 0.1


def test_pool_wraps_around_and_repeats_no_row() -> None:
    pool = WeightPool(0, 1.0)
    tensor = torch.empty(2049, 4096 + 1, dtype=torch.bfloat16)
    pool.fill(tensor, "larger than the pool")
    assert torch.isfinite(tensor).all()
    assert tensor.float().std() == pytest.approx(1, rel=0.01)
    assert len(torch.unique(tensor[:, :16].float(), dim=0)) == 2049


def live_bytes() -> int:
    """Bytes of all tensors that are alive, each memory counted once."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and not o.is_meta]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_packing_holds_one_original_expert_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built")
    model = tiny_model(moe_intermediate_size=256)
    layer_bytes = 2 * model.shape.experts * model.shape.expert_params
    seen: list[int] = []
    pass_on = TransientExperts.__call__

    def watched(self: TransientExperts, i: int) -> Any:
        if i == model.shape.experts - 1:
            seen.append(live_bytes())
        return pass_on(self, i)

    monkeypatch.setattr(TransientExperts, "__call__", watched)
    WeightPool.of(model)  # its numbers are kept for the next engine
    before = live_bytes()
    system = load(model, keep_original=False, packing=Packing())
    dense = 2 * model.shape.other_params
    assert len(seen) == model.shape.moe_layers
    assert max(seen) - before < 1.1 * dense + layer_bytes / 4
    assert live_bytes() - before < 1.1 * dense
    system.close()
    assert live_bytes() - before < 0.1 * dense


def test_a_padding_token_of_the_family_is_left_out_where_it_is_beyond_the_vocabulary() -> None:
    """Flex-OLMo's default is 100277."""
    model = families.tiny("flex_olmo")
    config = {key: value for key, value in model.config.items() if key != "pad_token_id"}
    network = skeleton(replace(model, config=config))
    assert network.get_input_embeddings().weight.shape[0] == families.VOCAB
    assert network.config.pad_token_id is None


def test_a_model_that_is_no_causal_language_model_is_refused_in_a_line() -> None:
    config = {"model_type": "qwen3_vl_moe", "text_config": families.tiny("qwen3_moe").config}
    with pytest.raises(ValueError, match="Transformers has no causal language model of a qwen3_vl_moe") as refused:
        skeleton(ModelSpec(name="seeing", config=config, full_layers=4, full_vocab=256))
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(("name", "is_refused"), [("deepseek_v3", True), ("glm_moe_dsa", False), ("hy_v4", False)])
def test_a_head_dim_beside_latent_attention_is_refused_where_the_family_rotates_by_it(
    name: str, is_refused: bool
) -> None:
    """GLM-5.2 has 192 there beside 64 rotated numbers. Transformers cannot run a DeepSeek-V3 like that."""
    model = families.tiny(name)
    model = replace(model, config=model.config | {"head_dim": 32})
    if is_refused:
        with pytest.raises(ValueError, match="head_dim=32 must be qk_rope_head_dim=16"):
            skeleton(model)
        return
    widths = {2 * held.numel() for key, held in skeleton(model).named_buffers() if key.endswith("inv_freq")}
    assert widths == {16}
