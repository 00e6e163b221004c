"""Sequences to train on, the tokens whose loss counts, and how well a network completes those that are held out.

Letters: N sequences, B of a batch, L tokens of the longest, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ktbench.engine.protocol import Diverged, Unsupported
from ktbench.engine.training.examples import Example, Examples, read_examples
from ktbench.resources import checkpoint_folder
from ktbench.spec.record import HeldOut

_UNCOUNTED = -100  # the label of a token whose loss does not count, as Transformers has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """`ids` and `labels`, int64 [N, L]: a label is the id itself, or -100 where the loss of the token does not count.

    Shorter sequences are padded on the right, where under causal attention no other token sees them.
    """

    ids: Tensor
    labels: Tensor

    def __getitem__(self, rows: Tensor | slice) -> Sequences:
        return Sequences(ids=self.ids[rows], labels=self.labels[rows])

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Sequences:
        """The same on a device."""
        return Sequences(ids=self.ids.to(device), labels=self.labels.to(device))

    def at_prompt_ends(self, logits: Tensor) -> Tensor:
        """[N, V] of `logits` [N, L, V]: those of the first token of each completion; without a prompt the last ones."""
        first = (self.labels != _UNCOUNTED).int().argmax(dim=1)
        return logits[torch.arange(len(self), device=first.device), first - 1]


def random_batches(vocab: int, size: tuple[int, int, int], seed: int) -> list[Sequences]:
    """Seeded tokens in batches of `size` (batches, B, L), of which every token is learned."""
    drawn = torch.randint(vocab, size, generator=torch.Generator().manual_seed(seed))
    return [Sequences(ids=ids, labels=ids) for ids in drawn]


def drawn_batches(rows: Sequences, steps: int, batch: int, seed: int) -> list[Sequences]:
    """`steps` batches of rows in seeded order: all are drawn once before any is drawn again."""
    draw = torch.Generator().manual_seed(seed)
    epochs = math.ceil(steps * batch / len(rows))
    order = torch.cat([torch.randperm(len(rows), generator=draw) for _ in range(epochs)])
    return [rows[some] for some in order[: steps * batch].view(steps, batch)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The examples of a file in the tokens of a model."""

    training: Sequences
    held_out: Sequences

    @classmethod
    def read(cls, file: str, model: str, length: int) -> Task:
        """Sequences of `length` tokens by the tokenizer in the folder `model`.

        Raises ValueError as `read_examples`, and Unsupported for an example that is longer.
        """
        tokenizer = AutoTokenizer.from_pretrained(checkpoint_folder(model), local_files_only=True)
        examples: Examples = read_examples(file)
        training, held_out = (_encode(some, tokenizer, length) for some in (examples.training, examples.held_out))
        return cls(training=training, held_out=held_out)


def _encode(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, length: int) -> Sequences:
    """Prompt and completion are tokenised apart; the token that ends a text belongs to the completion."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    pad = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ids = torch.full((len(examples), length), pad)
    labels = torch.full_like(ids, _UNCOUNTED)
    for row, one in enumerate(examples):
        prompt = tokenizer.encode(one.prompt)
        completion = tokenizer.encode(one.completion, add_special_tokens=False) + end
        first, last = len(prompt), len(prompt) + len(completion)
        if last > length:
            raise Unsupported(f"workload.prompt={length}: the example {one.prompt!r} has {last} tokens")
        ids[row, :last] = torch.tensor(prompt + completion)
        labels[row, first:last] = ids[row, first:last]
    return Sequences(ids=ids, labels=labels)


def completes(network: nn.Module, rows: Sequences, batch: int, device: torch.device) -> HeldOut:
    """How well a network completes sequences, by teacher forcing, `batch` of them at a time.

    A completion is exact where each of its tokens is the likeliest after those before, as greedy decoding then gives
    it. Raises Diverged for a loss that is not finite.
    """
    nats, exact = 0.0, 0
    for some in (rows[first : first + batch] for first in range(0, len(rows), batch)):
        with torch.no_grad():
            output: Any = network(input_ids=some.ids.to(device), use_cache=False)
        logits, labels = output.logits[:, :-1].float().cpu(), some.labels[:, 1:]
        counted = labels != _UNCOUNTED
        nats += float(cross_entropy(logits[counted], labels[counted], reduction="sum"))
        exact += int(((logits.argmax(dim=-1) == labels) | ~counted).all(dim=1).sum())
    loss = nats / int((rows.labels[:, 1:] != _UNCOUNTED).sum())
    if not math.isfinite(loss):
        raise Diverged(f"the loss of the held-out examples is {loss}")
    return HeldOut(loss=loss, exact=exact / len(rows), examples=len(rows))
