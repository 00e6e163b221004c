"""Expert Deferral and Expert Skipping in answers, against their formulae around the modules of Transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.generate import Generator
from ktbench.spec.run_spec import ModelSpec
from tests.engine.answers import ARMS, WORK, alone, drawn, error
from tests.engine.engines import TOLERANCE, cell, needs_avx512
from tests.engine.families.plain import build, experts_of

pytestmark = [needs_avx512(), pytest.mark.peers]


def late(number: int, count: int, network: PreTrainedModel, drop: bool) -> Callable[..., Tensor]:
    """A stand-in for the experts of MoE layer `number`: R_imm[l](x_l) + R_def[l-1](x_[l-1])."""
    modules = experts_of(network)
    whole, is_last = modules[number].forward, number == len(modules) - 1

    def forward(hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        lowest = gates.argsort(dim=-1, descending=True, stable=True)[:, -count:]
        is_late = torch.zeros_like(gates, dtype=torch.bool).scatter(1, lowest, value=True)
        before = 0 if number == 0 else modules[number - 1].carried
        if is_last and not drop:
            return whole(hidden, ids, gates) + before
        modules[number].carried = 0 if drop else whole(hidden, ids, gates.masked_fill(~is_late, 0))
        return whole(hidden, ids, gates.masked_fill(is_late, 0)) + before

    return forward


@torch.inference_mode()
def forced_late(model: ModelSpec, prompt: list[int], given: list[int], count: int, drop: bool) -> Tensor:
    """Logits [N, V], all steps but the pass over the prompt with the lowest experts late or dropped."""
    network = build(model)
    output = network(torch.tensor([prompt]), use_cache=True)
    seen = [output.logits[:, -1]]
    stand_ins = [late(number, count, network, drop) for number in range(len(experts_of(network)))]
    for module, stand_in in zip(experts_of(network), stand_ins, strict=True):
        module.forward = stand_in  # type: ignore[method-assign]
    for token in given[:-1]:
        output = network(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
        seen.append(output.logits[:, -1])
    return torch.cat(seen).float()


@pytest.fixture(scope="module", params=["deferral", "skipping"])
def what(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def late_truth(model: ModelSpec, what: str) -> Tensor:
    (prompt,), (given,) = drawn((7,)), drawn((5,), seed=6)
    return forced_late(model, prompt, given, 5, drop=what == "skipping")


@pytest.mark.parametrize("features", ARMS.values(), ids=ARMS)
def test_deferral_and_skipping_act_in_decode(
    answering: Generator,
    network: PreTrainedModel,
    model: ModelSpec,
    late_truth: Tensor,
    features: dict[str, Any],
    what: str,
) -> None:
    (prompt,), (given,) = drawn((7,)), drawn((5,), seed=6)
    answering.use(cell(model, WORK, **features, **{what: 5}))
    before = answering.counters()
    seen = answering.forced([prompt], [given])[0]
    assert error(seen, late_truth) < TOLERANCE
    assert error(seen[1:], alone(network, prompt, given)[1:]) > 2 * TOLERANCE  # or the check above says nothing
    counter = {"deferral": "deferred_experts", "skipping": "skipped_experts"}[what]
    assert answering.counters()[counter] > before[counter]


def test_passes_over_prompts_defer_only_where_asked(answering: Generator, model: ModelSpec) -> None:
    row = drawn((9,))
    seen = {}
    for name, features in {
        "whole": {},
        "decode": {"skipping": 6},
        "both": {"skipping": 6, "defer_prefill": True},
    }.items():
        answering.use(cell(model, WORK, avx512=True, **features))
        seen[name] = torch.cat([*answering.passed(row), answering.forced(row, [[1]])[0]])
    assert torch.equal(seen["whole"], seen["decode"])
    assert error(seen["both"], seen["whole"]) > TOLERANCE
