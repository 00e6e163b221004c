"""Every family against plain Transformers: logits, Expert Deferral and Skipping, greedy generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.experts import ExpertsOperator
from ktbench.engine.forms import is_experts
from ktbench.engine.hybrid import HybridEngine
from ktbench.engine.weight_plan import Packing
from ktbench.spec.engine import EngineSpec
from ktbench.spec.run_spec import WorkloadSpec
from tests.engine.engines import FUSED, needs_vector, relative
from tests.engine.families.plain import Late, build
from tests.engine.families.zoo import FAMILIES, TOP_K, VOCAB, tiny
from tests.engine.prompts import together
from tests.engine.tiny import decode, load, prefill, run, spec

pytestmark = pytest.mark.peers

# Base runs the experts of Transformers: late ones are only summed in another order. The fused ones round once where
# those round after each of some ten operations (bf16 rounds at 2^-9); a dropped expert is at least twice as much.
TOLERANCE = {"base": 0.001, "fused": 0.05}
ENGINE: dict[str, dict[str, Any]] = {"base": {}, "fused": FUSED}
# One of each kind: latent attention, groups and a dense layer; biases, limits and turns; plain; linear attention; GELU.
MAIN = ("deepseek_v3", "gpt_oss", "mixtral", "qwen3_next", "gemma4_text")

SEQUENCES = 8

EITHER = pytest.mark.parametrize("experts", ["base", pytest.param("fused", marks=needs_vector())])
EVERY_FAMILY = pytest.mark.parametrize("name", FAMILIES)
MAIN_FAMILIES = pytest.mark.parametrize("name", MAIN)


@cache
def plain(name: str) -> PreTrainedModel:
    return build(tiny(name))


@cache
def system(name: str) -> HybridEngine:
    return load(tiny(name), packing=Packing())


@pytest.fixture(scope="module", autouse=True)
def forget_the_models() -> Iterator[None]:
    yield
    plain.cache_clear()
    system.cache_clear()


def steps(name: str, work: WorkloadSpec, experts: str, **engine: Any) -> list[Tensor]:
    under_test = system(name)
    under_test.configure(spec(tiny(name), work, **ENGINE[experts], **engine))
    return run(under_test, work.steps)


def agrees(name: str, work: WorkloadSpec, experts: str) -> None:
    truth = together(plain(name), work)
    seen = steps(name, work, experts)
    assert relative(seen, truth) < TOLERANCE[experts]
    assert experts != "base" or all(map(torch.equal, seen, truth))


@EITHER
@EVERY_FAMILY
def test_logits_are_those_of_transformers(name: str, experts: str) -> None:
    agrees(name, prefill(), experts)
    agrees(name, decode(batch=3), experts)


@EITHER
@MAIN_FAMILIES
def test_logits_of_other_batches_are_those_of_transformers(name: str, experts: str) -> None:
    agrees(name, prefill(batch=3), experts)
    agrees(name, decode(), experts)


@EITHER
@EVERY_FAMILY
def test_deferral_follows_the_formula(name: str, experts: str) -> None:
    work = decode(batch=3)
    seen = steps(name, work, experts, deferral=1)
    assert relative(seen, Late(plain(name), 1).logits(work)) < TOLERANCE[experts]


@EVERY_FAMILY
def test_skipping_drops_the_lowest(name: str) -> None:
    work = decode(batch=3)
    seen = steps(name, work, "base", skipping=1)
    assert relative(seen, Late(plain(name), 1, drop=True).logits(work)) < TOLERANCE["base"]


@EVERY_FAMILY
def test_the_formula_is_not_nearly_met_by_others(name: str) -> None:
    """Nothing deferred, dropped instead, a last layer that defers as well: none of them passes for the formula."""
    work = decode(batch=3)
    truth = Late(plain(name), 1).logits(work)
    mutants = [Late(plain(name), 0), Late(plain(name), 1, drop=True), Late(plain(name), 1, last_defers=True)]
    assert min(relative(mutant.logits(work), truth) for mutant in mutants) > 10 * TOLERANCE["base"]


@EITHER
@pytest.mark.parametrize("n", range(TOP_K + 1))
@MAIN_FAMILIES
def test_any_number_may_be_late(name: str, n: int, experts: str) -> None:
    work = decode(batch=2)
    on_time = steps(name, work, experts)
    for drop, feature in ((False, "deferral"), (True, "skipping")):
        seen = steps(name, work, experts, **{feature: n})
        assert relative(seen, Late(plain(name), n, drop=drop).logits(work)) < TOLERANCE[experts]
        assert all(map(torch.equal, seen, on_time)) == (n == 0)


@EITHER
@EVERY_FAMILY
def test_greedy_generation_is_that_of_transformers(name: str, experts: str) -> None:
    """Of each sequence up to the first token that is not sure: it leads little, or a router chose otherwise."""
    truth, seen = generate(plain(name)), generate(network(name, experts))
    if experts == "base":
        assert torch.equal(seen.tokens, truth.tokens)
        return
    first, second = truth.logits.topk(2, dim=-1).values.unbind(-1)
    leads = first - second > 2 * TOLERANCE[experts] * truth.logits.square().mean(dim=-1).sqrt()
    alike = (truth.routes == seen.routes).all(dim=-1)
    sure = (leads & alike).long().cumprod(dim=1).bool()
    assert sure.any()
    assert torch.equal(seen.tokens[sure], truth.tokens[sure])


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """Of S sequences the N new tokens [S, N], their logits [S, N, vocab], and the experts behind each [S, N, ...]."""

    tokens: Tensor
    logits: Tensor
    routes: Tensor


def generate(model: PreTrainedModel) -> Generated:
    ids = torch.randint(VOCAB, (SEQUENCES, 7), generator=torch.Generator().manual_seed(1))
    routes: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: routes.append(args[1].sort(dim=-1).values))
        for module in model.modules()
        if is_experts(module) or isinstance(module, ExpertsOperator)
    ]
    made: Any = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=6,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    for hook in hooks:
        hook.remove()
    last = [one.view(SEQUENCES, -1, one.shape[-1])[:, -1] for one in routes]
    return Generated(
        tokens=made.sequences[:, ids.shape[1] :],
        logits=torch.stack(made.logits, dim=1).float(),
        routes=torch.stack(last, dim=1).view(SEQUENCES, len(made.logits), -1),
    )


def network(name: str, experts: str) -> PreTrainedModel:
    """The engine's modules, with their own routers again."""
    under_test = system(name)
    under_test._use(EngineSpec(threads=1, **ENGINE[experts]))
    under_test._components.state.begin(None)
    return under_test._components.network
