"""The form read from a module: its arithmetic is the module's own, and other experts are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.experts import OriginalExperts
from ktbench.engine.forms import ExpertsForm, Glu, is_experts, read_form
from ktbench.engine.observe import float32_output
from ktbench.engine.routing import Routing
from ktbench.engine.synthetic import TransientExperts, WeightPool, skeleton
from ktbench.engine.weight_plan import Packing
from tests.engine.families.plain import draw_experts
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
    draw_experts(module, "experts", WeightPool(5, std))
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
    seen = float32_output(OriginalExperts(module).matrices, hidden.float(), routing)
    assert torch.allclose(seen, own, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("isa", ["reference", "avx2", "avx512", "amx_emulated", "amx"])
@pytest.mark.parametrize("name", FORMS)
def test_packed_experts_compute_the_same(name: str, isa: str) -> None:
    kernels = pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)
    from ktbench.engine.forms import as_numpy
    from ktbench.engine.fused import FusedHost

    if missing := kernels.grants().get(isa, ""):
        pytest.skip(f"{isa}: {missing}")
    original = OriginalExperts(materialised(name))
    fused = FusedHost((0,), Packing(), CallRecorder()).pack(original.matrices, original.form)
    hidden, routing = inputs()
    output = torch.empty_like(hidden)
    arrays = as_numpy(hidden), routing.ids.numpy(), routing.gates.numpy(), as_numpy(output)
    fused._moe.forward(*arrays, isa=isa)
    for stored in (original, fused):
        truth = float32_output(stored.in_float32, hidden.float(), routing)
        assert (output - truth).norm() < 0.01 * truth.norm()


@pytest.mark.parametrize("name", FORMS)
def test_experts_passed_on_one_by_one_are_those_of_the_module(name: str) -> None:
    module, passing = materialised(name), TransientExperts(first_experts(name), "experts", WeightPool(5, 0.2))
    for i in (0, EXPERTS - 1):
        held, passed = read_form(module).matrices(module, i), passing(i)
        for ours, theirs in zip(passed.tensors, held.tensors, strict=True):
            assert torch.equal(ours, theirs)
            assert ours.float().std() > 0
        assert passed.glu == held.glu


@torch.inference_mode()
@pytest.mark.parametrize("name", FORMS)
def test_no_expert_adds_nothing(name: str) -> None:
    original = OriginalExperts(materialised(name).float())
    hidden, routing = inputs()
    ids = routing.ids.masked_fill(torch.arange(TOKENS)[:, None] % 2 == 0, -1)
    ids[1, 0] = -1
    some = Routing(ids=ids, gates=routing.gates)
    alone = Routing(ids=routing.ids[1:2, 1:], gates=routing.gates[1:2, 1:])
    for run in (original, lambda x, chosen: float32_output(original.matrices, x, chosen)):
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


class Experts(nn.Module):
    """Experts as most families have them; misfits change one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(4, 6, 8))
        self.down_proj = nn.Parameter(torch.empty(4, 8, 3))
        self.act_fn: Any = silu

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        raise NotImplementedError


class LooserExperts(Experts):
    limit = 7.0

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return silu(gate.clamp(max=8.0)) * up.clamp(-7, 7)


class SwappedExperts(Experts):
    def _apply_gate(self, both: Tensor) -> Tensor:
        up, gate = both.chunk(2, dim=-1)
        return silu(gate) * up


class OtherCallExperts(Experts):
    def forward(self, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


MISFITS: list[tuple[type[Experts], dict[str, Any], str]] = [
    (Experts, {"act_fn": gelu}, "activates by gelu"),
    (Experts, {"limit": 7.0}, "clamps its activation otherwise than gate and up to limit=7.0"),
    (LooserExperts, {}, "clamps its activation otherwise than gate and up to limit=7.0"),
    (SwappedExperts, {}, "which is neither silu nor gelu_tanh times up"),
    (Experts, {"gate_up_proj": weight(4, 8, 6)}, r"gate_up_proj is \(4, 8, 6\), down_proj needs \(4, 6, 8\)"),
    (Experts, {"has_gate": False}, "has no gate"),
    (Experts, {"has_post_expert_norm": True}, "norms the output of each expert"),
    (Experts, {"scales": weight(4)}, "has parameters of unknown meaning: scales"),
    (Experts, {"down_proj": weight(32, 3)}, "has no down_proj of three dimensions"),
    (OtherCallExperts, {}, r"is called with \(hidden_states\), not with \(hidden, ids, weights\)"),
]


def test_the_module_that_misfits_change_fits() -> None:
    assert read_form(Experts()) == ExpertsForm(experts=4, hidden=8, ffn=3)


@pytest.mark.parametrize(("kind", "changes", "why"), MISFITS, ids=[why[:20] for *_, why in MISFITS])
def test_what_does_not_fit_is_named(kind: type[Experts], changes: dict[str, Any], why: str) -> None:
    module = kind()
    for name, value in changes.items():
        setattr(module, name, value)
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: .*{why}") as refused:
        read_form(module)
    assert "\n" not in str(refused.value)


def test_limits_that_act_after_the_activation_fit_only_where_there_are_none() -> None:
    config = Step3p7TextConfig(hidden_size=64, moe_intermediate_size=32)
    with torch.device("meta"):
        assert read_form(Step3p7Experts(config)).glu == Glu()
        with pytest.raises(ValueError, match="Step3p7Experts: clamps its activation otherwise"):
            read_form(Step3p7Experts(config, swiglu_limit=7.0))
