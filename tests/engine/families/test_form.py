"""The form read from a module: its arithmetic is the module's own, in float32 and packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertsForm, Glu, is_experts, read_form
from ktbench.engine.observe import Reference
from ktbench.engine.routing import Routing
from ktbench.engine.synthetic import PassingExperts, WeightPool, materialise_experts, skeleton
from ktbench.engine.weight_plan import Packing
from tests.engine.families.zoo import EXPERTS, FAMILIES, TOP_K, bare, tiny

TOKENS = 7
GPT_OSS = Glu(alpha=1.702, limit=7.0, offset=1.0)
FORMS = {
    "mixtral": {},
    "aria_text": {"transposed": True},
    "gpt_oss": {"transposed": True, "interleaved": True, "biases": True, "glu": GPT_OSS},
    "minimax_m3_vl_text": {"glu": GPT_OSS},
    "deepseek_v4": {"glu": Glu(limit=10.0)},
    "gemma4_text": {"glu": Glu(activation="gelu_tanh")},
}


def first_experts(name: str) -> nn.Module:
    return next(module for module in bare(name).modules() if is_experts(module))


def materialised(name: str, std: float = 0.2) -> nn.Module:
    """Experts of a family with weights that are large enough to be clamped."""
    module = next(module for module in skeleton(tiny(name)).modules() if is_experts(module))
    materialise_experts(module, "experts", WeightPool(5, std))
    return module.requires_grad_(False)


def inputs() -> tuple[Tensor, Routing]:
    draw = torch.Generator().manual_seed(2)
    ids = torch.stack([torch.randperm(EXPERTS, generator=draw)[:TOP_K] for _ in range(TOKENS)])
    hidden = 4 * torch.randn(TOKENS, 64, generator=draw)
    return hidden.bfloat16(), Routing(ids=ids, gates=torch.rand(TOKENS, TOP_K, generator=draw))


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_differ(name: str) -> None:
    form, shape = read_form(first_experts(name)), tiny(name).shape
    changes: dict[str, Any] = FORMS[name]
    assert form == ExpertsForm(experts=EXPERTS, hidden=shape.hidden, ffn=shape.expert_ffn, **changes)


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_float32_arithmetic_is_that_of_the_module(name: str) -> None:
    module = materialised(name).float()
    hidden, routing = inputs()
    own = module(hidden.float(), routing.ids, routing.gates)
    seen = Reference(OriginalExperts(module).matrices, hidden.float())(routing)
    assert torch.allclose(seen, own, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("isa", ["reference", "avx2", "avx512", "amx_emulated", "amx"])
@pytest.mark.parametrize("name", FORMS)
def test_packed_experts_compute_the_same(name: str, isa: str) -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    from ktbench.engine.fused import FusedHost, bits

    if missing := kernels.grants().get(isa, ""):
        pytest.skip(f"{isa}: {missing}")
    original = OriginalExperts(materialised(name))
    fused = FusedHost((0,), Packing(), CallRecorder()).pack(original.matrices, original.form)
    hidden, routing = inputs()
    output = torch.empty_like(hidden)
    arrays = bits(hidden), routing.ids.numpy(), routing.gates.numpy(), bits(output)
    fused._moe.forward(*arrays, isa=isa)
    for stored in (original, fused):
        truth = Reference(stored.matrices, hidden.float())(routing)
        assert (output - truth).norm() < 0.01 * truth.norm()


@pytest.mark.parametrize("name", FORMS)
def test_experts_passed_on_one_by_one_are_those_of_the_module(name: str) -> None:
    module, passing = materialised(name), PassingExperts(first_experts(name), "experts", WeightPool(5, 0.2))
    for i in (0, EXPERTS - 1):
        held, passed = read_form(module).matrices(module, i), passing(i)
        for part in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias"):
            ours, theirs = getattr(passed, part), getattr(held, part)
            assert (ours is None) == (theirs is None)
            assert ours is None or (torch.equal(ours, theirs) and ours.float().std() > 0)
        assert passed.glu == held.glu


@torch.inference_mode()
@pytest.mark.parametrize("name", FORMS)
def test_nobody_adds_nothing(name: str) -> None:
    original = OriginalExperts(materialised(name).float())
    hidden, routing = inputs()
    ids = routing.ids.masked_fill(torch.arange(TOKENS)[:, None] % 2 == 0, -1)
    ids[1, 0] = -1
    some = Routing(ids=ids, gates=routing.gates)
    alone = Routing(ids=routing.ids[1:2, 1:], gates=routing.gates[1:2, 1:])
    for run in (original, lambda x, chosen: Reference(original.matrices, x)(chosen)):
        output = run(hidden.float(), some)
        assert (output[::2] == 0).all()
        assert torch.allclose(output[3::2], run(hidden.float(), routing)[3::2], rtol=1e-4, atol=1e-4)
        assert torch.allclose(output[1:2], run(hidden[1:2].float(), alone), rtol=1e-4, atol=1e-4)


def test_the_form_is_of_the_module_and_not_of_its_class() -> None:
    config = bare("gpt_oss").config
    assert config.swiglu_limit == GPT_OSS.limit
    module = GptOssExperts(config)
    module.limit = 3.0
    assert read_form(module).glu.limit == 3.0


@pytest.mark.parametrize("limit", [None, 2.0])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_formula_in_float64(activation: Any, limit: float | None) -> None:
    gate, up = np.random.default_rng(0).normal(scale=3, size=(2, 100))
    alpha = 1.702 if activation == "silu" else 1.0
    seen = Glu(activation=activation, alpha=alpha, limit=limit, offset=1.0)(
        torch.tensor(gate), torch.tensor(up)
    ).numpy()
    g, u = (gate, up) if limit is None else (np.minimum(gate, limit), np.clip(up, -limit, limit))
    gelu_tanh = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    expected = (gelu_tanh if activation == "gelu_tanh" else g / (1 + np.exp(-alpha * g))) * (u + 1)
    np.testing.assert_allclose(seen, expected, rtol=1e-10, atol=1e-12)
