"""Prompts in chunks of a fixed size, which are recorded once and replayed: +c in prefill.

Letters: B sequences, T tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ktbench.engine.decode.fixed import FixedPass, PassInputs
from ktbench.engine.decode.inputs import StepInputs, fixed_cache
from ktbench.engine.decode.program import StepRecording
from ktbench.engine.decode.timeline import Segment

if TYPE_CHECKING:
    from ktbench.engine.backend import MoERuntimeState
    from ktbench.engine.cuda.attention import MaskedAttention
    from ktbench.engine.decode.inputs import DecodeState, StepRouting
    from ktbench.engine.routing import PassRouting
    from ktbench.spec.run_spec import WorkloadSpec


class ReplayPrefill:
    """Steps of one prompt a sequence, whose whole chunks are recorded once and replayed, on a cache of fixed size.

    What is left of a prompt runs the modelling code on the same cache. `workload` has chunks; `state` is what one of
    them left, whose cache tells what layers keep. `counted["eager_passes"]` counts passes that were not replayed.
    Raises ValueError for a cache that is more than keys and values.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        attention: MaskedAttention,
        recording: StepRecording,
        moe: MoERuntimeState,
        state: DecodeState,
        workload: WorkloadSpec,
    ) -> None:
        prompt, chunk = workload.prompt, workload.chunk
        assert chunk is not None and state.cache is not None
        layers: list[Any] = list(state.cache.layers)
        self._counted = moe.counted
        self._counted.setdefault("eager_passes", 0)
        inputs = [
            StepInputs.of(network.config, state.padding, prompt, tokens) for tokens in (chunk, prompt % chunk) if tokens
        ]
        self._chunk, self._first = inputs[0].tokens, [one.first for one in inputs]
        cache = fixed_cache(layers, prompt, inputs[0].slot)
        self._passes = {one.tokens: FixedPass(network, attention, recording, moe, one, cache) for one in inputs}

    @property
    def why(self) -> str:
        """Why chunks are not replayed, or not all of a prompt, once that was tried; else empty."""
        left = [tokens for tokens in self._passes if tokens < self._chunk]
        rest = f"the last {left[0]} tokens of a prompt are no whole chunk" if left else ""
        return self._passes[self._chunk].why or rest

    @property
    def width(self) -> int:
        return len(self._first[0])

    def begin(self, state: DecodeState) -> None:
        """See `PassRunner`; a prompt begins with nothing cached."""
        for first in self._first:
            first.copy_(state.padding)

    def record(self, ids: Tensor, routing: StepRouting) -> None:
        """Record the first chunk of the prompts `ids`; it is done as well."""
        fixed, given = next(self._parts(ids, routing))
        fixed.record(given)

    def step(self, ids: Tensor, routing: StepRouting) -> Tensor:
        for fixed, given in self._parts(ids, routing):
            self._counted["eager_passes"] += not fixed.recorded
            logits = fixed.run(given)
        return logits

    def undo(self, tokens: int) -> bool:
        """See `PassRunner`: nothing is continued."""
        return True

    def run_model(self, ids: Tensor, routing: StepRouting) -> Tensor:
        for fixed, given in self._parts(ids, routing):
            logits = fixed.run_model(given)
        return logits

    def profile(self, ids: Tensor, routing: StepRouting) -> list[Segment]:
        parts = self._parts(ids, routing)
        return [segment for fixed, given in parts for segment in fixed.profile(given)]

    def _parts(self, ids: Tensor, routing: StepRouting) -> Iterator[tuple[FixedPass, PassInputs]]:
        """What runs each chunk of the prompts, with its inputs."""
        parts = torch.split(ids, self._chunk, dim=1)
        of_passes: Sequence[PassRouting | None] = routing or [None] * len(parts)
        for number, (part, of_pass) in enumerate(zip(parts, of_passes, strict=True)):
            yield self._passes[part.shape[1]], PassInputs(part, number * self._chunk, of_pass)
