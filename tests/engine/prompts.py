"""The prompts of a workload in plain Transformers: together behind a mask, or each sequence alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.decode.inputs import CACHE
from ktbench.engine.workload.routing import prompt_ids, prompt_padding
from ktbench.spec.run_spec import WorkloadSpec


def drawn(vocab: int, work: WorkloadSpec) -> tuple[Tensor, list[int]]:
    """Ids [B, T] of all tokens of a workload, and how many of each prompt are padding."""
    tokens = work.prompt + work.steps if work.phase == "decode" else work.prompt * work.steps
    ids = torch.from_numpy(prompt_ids(vocab, work.batch, tokens, work.seed))
    return ids, prompt_padding(work.batch, work.prompt, work.shortest).tolist()


@torch.inference_mode()
def together(
    network: PreTrainedModel, work: WorkloadSpec, before_step: Callable[[int], None] = lambda step: None
) -> list[Tensor]:
    """Logits [B, vocab] of every step; prompts of unequal length behind a mask, as a tokenizer would pad them."""
    ids, padding = drawn(network.config.vocab_size, work)
    logits = []
    if work.phase == "prefill":
        for step, part in enumerate(ids.split(work.prompt, dim=1)):
            before_step(step)
            logits.append(_last(network, part, padding, use_cache=False))
        return logits
    cache = network(ids[:, : work.prompt], use_cache=True, **_masks(padding, 0, work.prompt))[CACHE]
    for step, i in enumerate(range(work.prompt, work.prompt + work.steps)):
        before_step(step)
        logits.append(_last(network, ids[:, i : i + 1], padding, seen=i, **{CACHE: cache}, use_cache=True))
    return logits


def alone(network: PreTrainedModel, work: WorkloadSpec) -> list[Tensor]:
    """The same, every sequence by itself and without its padding."""
    ids, padding = drawn(network.config.vocab_size, work)
    if work.phase == "prefill":
        parts = ids.split(work.prompt, dim=1)
        return [torch.cat([_whole(network, part[b, pad:]) for b, pad in enumerate(padding)]) for part in parts]
    rows = [_decode(network, ids[b, pad:], work.prompt - pad) for b, pad in enumerate(padding)]
    return [torch.cat(step) for step in zip(*rows, strict=True)]


@torch.inference_mode()
def _whole(network: PreTrainedModel, ids: Tensor) -> Tensor:
    return _last(network, ids[None], [0], use_cache=False)


@torch.inference_mode()
def _decode(network: PreTrainedModel, ids: Tensor, prompt: int) -> list[Tensor]:
    cache = network(ids[None, :prompt], use_cache=True)[CACHE]
    return [_last(network, one[None, None], [0], **{CACHE: cache}, use_cache=True) for one in ids[prompt:]]


def _last(network: PreTrainedModel, ids: Tensor, padding: list[int], seen: int = 0, **cache: Any) -> Tensor:
    logits: Tensor = (
        network(ids, logits_to_keep=1, **_masks(padding, seen, ids.shape[1]), **cache).logits[:, -1].float()
    )
    return logits


def _masks(padding: list[int], seen: int, tokens: int) -> dict[str, Tensor]:
    if not any(padding):
        return {}
    rows = [[0] * pad + [1] * (seen + tokens - pad) for pad in padding]
    positions = [[max(0, i - pad) for i in range(seen, seen + tokens)] for pad in padding]
    return {"attention_mask": torch.tensor(rows), "position_ids": torch.tensor(positions)}
