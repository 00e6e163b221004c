"""Prompts put to the engine, and what plain Transformers makes of the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.generate import Generator, Sampling, open_generator
from ktbench.engine.protocol import HostRole
from ktbench.spec.run_spec import ModelSpec
from tests.engine.engines import cell
from tests.engine.families.zoo import EXPERTS, VOCAB
from tests.engine.tiny import decode

# Where every token goes to all experts, the last bits of a hidden state do not decide which experts it meets.
ALL = {"num_experts_per_tok": EXPERTS, "n_group": 1, "topk_group": 1}
WORK = decode()
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "+v+d": {"avx512": True, "dynamic": True},
    "+v+l": {"avx512": True, "packed_dense": True},
}
LENGTHS = (9, 4, 12, 6, 7)
Ids = list[list[int]]


def drawn(lengths: tuple[int, ...], seed: int = 1) -> Ids:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=draw).tolist() for length in lengths]


def opened(model: ModelSpec, arms: dict[str, dict[str, Any]] = ARMS) -> Generator:
    return open_generator([cell(model, WORK, **arm) for arm in arms.values()], HostRole(cores=1))


@torch.inference_mode()
def alone(network: PreTrainedModel, prompt: list[int], given: list[int]) -> Tensor:
    """Logits [N, V] before each given token, from one pass over the sequence in plain Transformers."""
    ids = torch.tensor([prompt + given[:-1]])
    logits: Tensor = network(ids, use_cache=False).logits
    return logits[0, len(prompt) - 1 :].float()


def error(seen: Tensor, truth: Tensor) -> float:
    assert torch.isfinite(seen).all()
    return float((seen - truth).norm() / truth.norm())


def stepped(engine: Generator, prompts: Ids, given: Ids, ends: tuple[int, ...]) -> list[Tensor]:
    """Logits of each prompt, those whose time has come dropped from the batch."""
    seen: list[list[Tensor]] = [[] for _ in prompts]

    def choose(logits: Tensor, left: list[int], number: int) -> list[int]:
        for i, row in zip(left, logits, strict=True):
            seen[i].append(row.float().clone())
        return [given[i][number] for i in left]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ktbench.engine.generate.Chooser.choose", lambda self, *asked: choose(*asked))
        answers = engine.generate(
            prompts, [Sampling()] * len(prompts), room=max(ends), ended=lambda i, tokens: len(tokens) == ends[i]
        )
    assert answers == [tokens[:end] for tokens, end in zip(given, ends, strict=True)]
    return [torch.stack(rows) for rows in seen]
