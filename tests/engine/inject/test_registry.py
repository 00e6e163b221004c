"""Which modules an operator can stand for, tested on real modules of Transformers and of what only looks like them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm, Qwen3NextRMSNormGated

from ktbench.engine.inject.forms import read_norm
from ktbench.engine.inject.registry import OPERATORS
from tests.engine.inject.networks import PlainExperts, sliced

EPSILON = 1e-3


def why(operator: str, module: nn.Module) -> str:
    return OPERATORS[operator].fits(module)


def attention_of(name: str) -> nn.Module:
    return sliced(name).get_submodule("model.layers.0.self_attn")


class TwoInputs(PlainExperts):
    def forward(self, hidden: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        return hidden


class Ungated(PlainExperts):
    def __init__(self) -> None:
        super().__init__()
        del self.gate_up_proj


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (PlainExperts(), ""),
        (TwoInputs(), "is called with (hidden, ids), not with (hidden, ids, weights)"),
        (nn.Linear(16, 16), "is called with (input), not with (hidden, ids, weights)"),
        (Ungated(), "has no gate_up_proj of three dimensions"),
    ],
)
def test_experts(module: nn.Module, says: str) -> None:
    assert why("experts", module) == says


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.Linear(16, 16), ""),
        (nn.Linear(64, 1), "has 64 inputs and 1 outputs, each must be at least 16"),
        (nn.Linear(15, 64), "has 15 inputs and 64 outputs, each must be at least 16"),
        (nn.Bilinear(16, 16, 16), "is no torch.nn.Linear"),
    ],
)
def test_linear(module: nn.Module, says: str) -> None:
    assert why("linear", module) == says


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("kind", "options", "offset"),
    [(nn.RMSNorm, {"eps": EPSILON}, 0), (GemmaRMSNorm, {"eps": EPSILON}, 1), (Qwen3NextRMSNorm, {"eps": EPSILON}, 1)],
)
def test_the_form_of_a_norm_is_found_whatever_its_class_is_called(
    device: str, kind: Any, options: dict[str, float], offset: int
) -> None:
    with torch.device(device):
        module = kind(24, **options).to(torch.bfloat16)
    form = read_norm(module)
    assert (form.offset, form.epsilon) == (offset, EPSILON)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.device.type == device


class Odd(nn.Module):
    """A norm of the mean's distance from zero, which its attributes do not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(16)), EPSILON

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(dim=-1, keepdim=True))


class Pair(Odd):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., :3]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Odd(), "computes something other than weight"),
        (Pair(), "computes something other than weight"),
        (Qwen3NextRMSNormGated(16), "cannot be called with hidden states alone"),
        (nn.LayerNorm(16), "has no 1-D weight as its only parameter"),
        (nn.RMSNorm(16, elementwise_affine=False), "has no 1-D weight as its only parameter"),
        (nn.RMSNorm(16), "has no epsilon called variance_epsilon or eps"),
        (nn.Linear(16, 16, bias=False), "has no 1-D weight as its only parameter"),
    ],
)
def test_what_is_no_rms_norm_is_distinguished(module: nn.Module, says: str) -> None:
    assert why("rms_norm", module).startswith(says)


@pytest.mark.parametrize("name", ["qwen3_30b_a3b", "mixtral_8x7b", "qwen2_57b_a14b", "glm_4_5_air", "minimax_m2"])
def test_attention_over_heads_of_equal_width_fits(name: str) -> None:
    assert why("attention", attention_of(name)) == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [("deepseek_v3", "has no q_proj, k_proj, v_proj"), ("gpt_oss_20b", "has parameters of its own: sinks")],
)
def test_other_attention_is_distinguished(name: str, says: str) -> None:
    assert why("attention", attention_of(name)) == says


def test_attention_that_gates_its_output_is_distinguished() -> None:
    config = AutoConfig.for_model("qwen3_next", num_hidden_layers=4)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    reason = why("attention", network.get_submodule("model.layers.3.self_attn"))
    assert reason == "has a q_proj with 8192 outputs, 16 heads of 256 have 4096"


def test_attention_needs_its_sizes_and_nothing_besides() -> None:
    module = nn.ModuleDict({name: nn.Linear(16, 16) for name in ("q_proj", "k_proj", "v_proj", "o_proj")})
    assert why("attention", module) == "has no head_dim, or no config with num_attention_heads"
    module.head_dim, module.config = 4, SimpleNamespace(num_attention_heads=4)  # type: ignore[assignment]
    assert why("attention", module) == ""
    module["conv"] = nn.Conv1d(1, 1, 1)
    assert why("attention", module) == "has conv besides its projections"


def test_only_the_operator_that_wraps_anything_takes_every_module() -> None:
    module = nn.Conv1d(16, 16, 1)
    assert [name for name in OPERATORS if why(name, module) == ""] == ["shared"]


DOCS = Path(__file__).parents[3] / "docs" / "injection.md"


def test_the_docs_list_every_operator_as_the_registry_has_it() -> None:
    _, _, table = DOCS.read_text().partition("| operator |")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]
    assert [(name.strip("`"), summary, wraps == "yes", args) for name, summary, _, wraps, args in rows] == [
        (kind.name, kind.summary, kind.wraps, ", ".join(f"`{name}`" for name in kind.arguments))
        for kind in OPERATORS.values()
    ]
