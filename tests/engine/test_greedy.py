"""Greedy generation, each token fed back, is that of Transformers wherever its lead is larger than an error may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.decode.step import Forward
from ktbench.engine.hybrid import HybridEngine
from ktbench.spec.engine import EngineSpec
from tests.engine.engines import TOLERANCE, cell, changed, engine_for, needs_avx512
from tests.engine.families.plain import build
from tests.engine.families.zoo import EXPERTS, VOCAB
from tests.engine.tiny import decode

pytestmark = [needs_avx512(), pytest.mark.peers]

NAMES = ["qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "deepseek_v3", "gpt_oss", "olmoe"]
PROMPT, NEW = 9, 8
PADDING = torch.tensor([0, 4])
# Where every token goes to all experts, the last bits of a hidden state do not decide which experts it meets.
_ALL = {"num_experts_per_tok": EXPERTS, "n_group": 1, "topk_group": 1}


def prompts() -> tuple[Tensor, Tensor]:
    """Ids [2, T] and their mask: the second prompt is shorter."""
    ids = torch.randint(VOCAB, (2, PROMPT), generator=torch.Generator().manual_seed(3))
    return ids, (torch.arange(PROMPT) >= PADDING[:, None]).long()


def generate(network: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """New tokens [2, N] of Transformers' own loop, and their logits [N, 2, vocab]."""
    ids, mask = prompts()
    made: Any = network.generate(  # type: ignore[operator]
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=NEW,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return made.sequences[:, PROMPT:], torch.stack(made.logits).float()


@torch.inference_mode()
def by_steps(system: HybridEngine) -> Tensor:
    """New tokens [2, N] of recorded steps: recorded on the first token, replayed on all others."""
    components, ids = system._components, prompts()[0]
    system._use(EngineSpec(threads=1, avx512=True, packed_dense=True), 0)
    components.state.begin(None)
    forward = Forward(components.network)
    forward.pad(PADDING)
    tokens = [forward.onward(ids).argmax(dim=-1)]
    decoding = components.decoder(forward.remember(), PROMPT + NEW)
    decoding.record(tokens[0][:, None], None)
    assert decoding.recorded, decoding.why
    for _ in range(NEW - 1):
        tokens.append(decoding.step(tokens[-1][:, None], None).argmax(dim=-1))
    return torch.stack(tokens, dim=1)


def sure(logits: Tensor) -> list[int]:
    """How many tokens of each sequence come before the first whose lead is within what a logit may be off."""
    best = logits.topk(2, dim=-1).values
    is_sure = best[..., 0] - best[..., 1] > 4 * TOLERANCE * logits.square().mean(dim=-1).sqrt()
    return is_sure.long().cumprod(dim=0).sum(dim=0).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_recorded_steps_generate_what_transformers_generates(name: str) -> None:
    model = changed(name, **_ALL)
    truth, logits = generate(build(model))
    seen = by_steps(engine_for(cell(model, decode(), avx512=True, packed_dense=True)))
    certain = sure(logits)
    assert max(certain) > 0
    for row, count in enumerate(certain):
        assert seen[row, :count].tolist() == truth[row, :count].tolist()


def test_enough_tokens_are_sure() -> None:
    """Over all models more than a token a sequence, or the test above would say little."""
    counts = [count for name in NAMES for count in sure(generate(build(changed(name, **_ALL)))[1])]
    assert sum(counts) > len(counts)
