"""Operators of recorded steps: routers choose what those of Transformers do, rotary tables hold what it computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding, Qwen3MoeTopKRouter

pytest.importorskip("ktbench._kernels", reason="the kernel extension is not built", exc_type=ImportError)

from ktbench.engine.decode.operators import RotaryTable, StepRouter
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.dense import DenseOperators
from ktbench.engine.inject.forms import RouterForm, read_router
from ktbench.engine.inject.registry import OPERATORS
from tests.engine.engines import (
    FUSED,
    TOLERANCE,
    cell,
    changed,
    engine_for,
    logits,
    needs_vector,
    plain,
    relative,
    saved,
)
from tests.engine.prompts import together
from tests.engine.tiny import decode

NATIVE = needs_vector()
BF16, F32 = torch.bfloat16, torch.float32
EXPERTS, HIDDEN, TOP_K = 24, 48, 3
ROUTERS = {
    "qwen3_moe": (Qwen3MoeTopKRouter, True, BF16),
    "qwen3_moe as it is": (Qwen3MoeTopKRouter, False, BF16),
    "qwen2_moe": (Qwen2MoeTopKRouter, False, BF16),
    "olmoe": (OlmoeTopKRouter, False, BF16),
    "mixtral": (MixtralTopKRouter, True, F32),
}


def router(kind: Any, renormalised: bool, **changes: int) -> nn.Module:
    sizes = {"num_experts": EXPERTS, "num_local_experts": EXPERTS, "hidden_size": HIDDEN, "num_experts_per_tok": TOP_K}
    module: nn.Module = kind(SimpleNamespace(**sizes | changes, norm_topk_prob=renormalised)).to(BF16)
    module.get_parameter("weight").data.normal_(generator=torch.Generator().manual_seed(1))
    return module


@NATIVE
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ROUTERS)
def test_the_form_is_found(name: str, device: str) -> None:
    kind, renormalised, weights = ROUTERS[name]
    module = router(kind, renormalised).to(device)
    assert read_router(module) == RouterForm(top_k=TOP_K, renormalised=renormalised, weights=weights)
    assert OPERATORS["router"].fits(module) == ""


class Odd(nn.Module):
    """Chooses by a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 16))

    def forward(self, x: Tensor) -> Any:
        found = nn.functional.linear(x, self.weight)
        return (found, *torch.sigmoid(found).topk(2, dim=-1))


class Smallest(Odd):
    def forward(self, x: Tensor) -> Any:
        found = nn.functional.linear(x, self.weight)
        return (found, *torch.softmax(found, dim=-1, dtype=F32).topk(2, dim=-1, largest=False))


class Scaled(Odd):
    def forward(self, x: Tensor) -> Any:
        found = nn.functional.linear(x, self.weight) * 2
        return (found, *torch.softmax(found, dim=-1, dtype=F32).topk(2, dim=-1))


class Swapped(Odd):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[::-1]


class Pair(Odd):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[1:]


class WithMask(Odd):
    def forward(self, x: Tensor, mask: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)


OTHER = "computes something other than the largest of the softmax"


@NATIVE
@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Odd(), OTHER),
        (Smallest(), OTHER),
        (Scaled(), "gives other logits than"),
        (Swapped(), "gives other logits than"),
        (Pair(), "does not give three tensors"),
        (WithMask(), "cannot be called with hidden states alone"),
        (nn.Linear(16, 8), "has no 2-D weight as all that it holds"),
        (nn.LayerNorm(16, bias=False), "has no 2-D weight as all that it holds"),
    ],
)
def test_what_is_no_softmax_router_is_refused(module: nn.Module, says: str) -> None:
    assert OPERATORS["router"].fits(module).startswith(says)


@NATIVE
def test_a_router_with_a_correction_of_its_choice_is_refused() -> None:
    from transformers import DeepseekV3Config

    assert OPERATORS["router"].fits(DeepseekV3TopkRouter(DeepseekV3Config())) != ""


def step_router(module: nn.Module) -> tuple[Any, Any]:
    """The operator, and the steps that it asks whether one is recorded."""
    steps: Any = SimpleNamespace(runs=False)
    return StepRouter(module, DenseOperators(1, "bf16", CallRecorder(), keeps_original=False), steps), steps


@NATIVE
@pytest.mark.parametrize("name", ROUTERS)
@torch.inference_mode()
def test_a_recorded_step_chooses_what_transformers_does(name: str) -> None:
    kind, renormalised, _ = ROUTERS[name]
    original = router(kind, renormalised)
    operator, steps = step_router(original)
    steps.runs = True
    hidden = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    found, weights, ids = operator(hidden[:, None])
    truth, expected, chosen = original(hidden)
    assert torch.equal(found, truth)
    assert (weights.dtype, ids.dtype) == (expected.dtype, chosen.dtype)
    torch.testing.assert_close(weights, expected, rtol=2**-8 if weights.dtype == BF16 else 1e-5, atol=0)
    # Of equal logits each may choose its own.
    clear = truth.float().topk(TOP_K + 1, dim=-1)[0].diff(dim=-1).ne(0).all(dim=-1)
    assert clear.float().mean() > 0.5
    assert torch.equal(ids[clear], chosen[clear])
    assert torch.equal(truth.gather(1, ids), truth.gather(1, chosen))


@NATIVE
@torch.inference_mode()
def test_elsewhere_the_original_runs() -> None:
    original = router(Qwen3MoeTopKRouter, True)
    operator, steps = step_router(original)
    hidden = torch.randn(4, HIDDEN)
    assert all(map(torch.equal, operator(hidden.bfloat16()), original(hidden.bfloat16())))
    original.float()
    steps.runs = True
    assert all(map(torch.equal, operator(hidden), original(hidden)))


@NATIVE
@pytest.mark.peers
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_replayed_steps_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model, workload = saved(changed(name), tmp_path), decode(batch=3, steps=4, shortest=5)
    system = engine_for(cell(model, decode(), **FUSED, packed_dense=True))
    assert sum(isinstance(one, StepRouter) for one in system._components.network.modules()) == 4
    seen = logits(system, cell(model, workload, **FUSED, packed_dense=True))
    assert system.notes() == ()
    assert relative(seen, together(plain(model), workload)) < TOLERANCE


POSITIONS = torch.tensor([[0, 3, 19], [7, 1, 2]])
STATES = torch.zeros(2, 3, 64, dtype=torch.bfloat16)
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def made(rope: dict[str, Any] | None = None, **more: Any) -> tuple[RotaryTable, Qwen3MoeRotaryEmbedding, Any]:
    changes = more if rope is None else more | {"rope_parameters": rope}
    original = Qwen3MoeRotaryEmbedding(AutoConfig.for_model("qwen3_moe", head_dim=16, **changes))
    steps: Any = SimpleNamespace(runs=False, tables=[])
    return RotaryTable(original, steps), original, steps


@torch.inference_mode()
@pytest.mark.parametrize("rope", [None, _YARN], ids=["plain", "yarn"])
def test_a_step_looks_up_what_the_original_computes(rope: dict[str, Any] | None) -> None:
    table, original, steps = made(rope)
    assert steps.tables == [table]
    table.make_room(20)
    steps.runs = True
    for seen, expected in zip(table(STATES, POSITIONS), original(STATES, POSITIONS), strict=True):
        assert seen.dtype == torch.bfloat16
        assert torch.equal(seen, expected)


_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0 + i for i in range(8)],
    "original_max_position_embeddings": 16,
    "factor": 8.0,
}


@torch.inference_mode()
@pytest.mark.parametrize("rope", [_LONG, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}])
def test_there_is_no_table_of_rotations_that_depend_on_the_length(rope: dict[str, Any]) -> None:
    """Up to the length that a model was trained for there is one."""
    table, original, steps = made(rope, max_position_embeddings=16)
    table.make_room(16)
    steps.runs = True
    positions = torch.tensor([[0, 3, 15], [7, 1, 2]])
    assert all(map(torch.equal, table(STATES, positions), original(STATES, positions)))
    with pytest.raises(ValueError, match="beyond 16 positions"):
        table.make_room(17)


@NATIVE
@pytest.mark.peers
def test_steps_beyond_the_length_of_a_rotation_give_the_logits_of_transformers(tmp_path: Path) -> None:
    """Frequencies change within these steps."""
    model = saved(changed("qwen3_moe", rope_parameters=_LONG, num_experts_per_tok=8), tmp_path)
    workload = decode(batch=2, steps=4, prompt=14)
    system = engine_for(cell(model, workload, **FUSED, packed_dense=True))
    seen = logits(system, cell(model, workload, **FUSED, packed_dense=True))
    assert any("length of a sequence" in note for note in system.notes())
    assert relative(seen, together(plain(model), workload)) < TOLERANCE


@torch.inference_mode()
def test_outside_of_steps_the_original_runs() -> None:
    table, original, _ = made()
    table.make_room(2)
    for seen, expected in zip(table(STATES, POSITIONS + 100), original(STATES, POSITIONS + 100), strict=True):
        assert torch.equal(seen, expected)


@torch.inference_mode()
def test_more_room_is_made_and_less_keeps_what_there_is() -> None:
    table, original, steps = made()
    for room in (4, 20, 10):
        table.make_room(room)
    steps.runs = True
    assert torch.equal(table(STATES, POSITIONS)[0], original(STATES, POSITIONS)[0])
    with pytest.raises(IndexError):
        table(STATES, POSITIONS + 1)
