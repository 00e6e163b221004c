"""The input of llama.cpp, token by token: the same ids at the same positions as in our engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.routing import prompt_ids
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.serving.pages import whole_cells


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLayout:
    """One call of llama_decode over N tokens, sequence by sequence: all arrays are [N].

    `wanted` is 1 if logits are requested.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    sequences: NDArray[np.int32]
    wanted: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The calls of a workload: those of the prompt (decode only), then those of each step."""

    workload: WorkloadSpec
    prompt: tuple[TokenLayout, ...]
    steps: tuple[tuple[TokenLayout, ...], ...]

    @property
    def call_tokens(self) -> int:
        """Tokens of the largest call."""
        return max(len(call) for calls in (self.prompt, *self.steps) for call in calls)

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest call of a step."""
        return max(len(call) for calls in self.steps for call in calls)

    @property
    def cells(self) -> int:
        """Positions that the memory of all sequences must hold."""
        work = self.workload
        deepest = work.prompt + (work.steps if work.phase == "decode" else 0)
        return work.batch * whole_cells(deepest)


def write_script(workload: WorkloadSpec, vocab: int) -> Script:
    """Prompt and steps with the same ids that `ktbench.engine.workload_trace` gives our engine.

    Each prefill step has new prompts, a decode step one forced token per sequence; with `workload.chunk` a call takes
    that many tokens of each sequence.
    """
    work = workload
    if work.phase == "prefill":
        ids = prompt_ids(vocab, work.batch, work.steps * work.prompt, work.seed)
        steps = (_calls(part, 0, work.chunk) for part in np.split(ids, work.steps, axis=1))
        return Script(workload=work, prompt=(), steps=tuple(steps))
    ids = prompt_ids(vocab, work.batch, work.prompt + work.steps, work.seed)
    decode = (_calls(ids[:, at : at + 1], at, None) for at in range(work.prompt, ids.shape[1]))
    return Script(workload=work, prompt=_calls(ids[:, : work.prompt], 0, work.chunk), steps=tuple(decode))


def _calls(ids: NDArray[np.int64], first: int, chunk: int | None) -> tuple[TokenLayout, ...]:
    """Calls over [B, T] ids from position `first` on; the last position of the last call requests logits."""
    tokens = ids.shape[1]
    size = chunk or tokens
    return tuple(
        _layout(ids[:, at : at + size], first + at, wanted=at + size >= tokens) for at in range(0, tokens, size)
    )


def _layout(ids: NDArray[np.int64], first: int, *, wanted: bool) -> TokenLayout:
    batch, tokens = ids.shape
    requests = np.zeros((batch, tokens), np.int8)
    requests[:, -1] = wanted
    return TokenLayout(
        tokens=ids.astype(np.int32).ravel(),
        positions=np.tile(np.arange(first, first + tokens, dtype=np.int32), batch),
        sequences=np.repeat(np.arange(batch, dtype=np.int32), tokens),
        wanted=requests.ravel(),
    )
