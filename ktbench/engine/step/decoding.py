"""Decode steps of the lean device role: recorded once for a workload, then replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from ktbench.engine.step.fixed_cache import fill, fixed_cache
from ktbench.engine.step.inputs import StepInputs, Windows
from ktbench.engine.step.program import Lowering, NotRecordable
from ktbench.engine.step.recording import Recording
from ktbench.engine.step.watch import Segment, joined


class StepAttending(Protocol):
    """Attention of one new token a sequence."""

    by_mask: int  # calls that needed a mask so far

    @property
    def lower(self) -> Lowering | None:
        """Better ways to do what a recorder finds."""

    def make_room(self, room: int) -> None:
        """Have what depends on a token's position at hand for the first `room` of them."""

    def of_step(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Inside, attention reads the cache up to the token of these inputs."""


class LeanDecoding:
    """Steps of one token a sequence on a cache that stays where it is.

    `layers` are what a prompt left in its cache, `padding` [B] how many positions of it are padding, `room` how many
    positions there may be; all lie where the network does. `recorded` is whether steps are replayed, `why` says why
    they cannot be: then the modelling code runs.
    Raises ValueError for a cache that is more than keys and values.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        attention: StepAttending,
        recording: Recording,
        layers: Sequence[CacheLayerMixin],
        padding: Tensor,
        room: int,
    ) -> None:
        self._network, self._attention, self._layers = network, attention, layers
        self._recording = recording
        config = network.config
        additive = torch.bfloat16 if config._attn_implementation == "eager" else None
        self._inputs = StepInputs(padding, room, Windows.of(config), additive)
        attention.make_room(room)
        self._cache: Cache = fixed_cache(layers, room, self._inputs.slot)
        # Read after fixed_cache has refused layers that hold no keys.
        self._held = int(getattr(layers[0], "cumulative_length", 0) or layers[0].keys.shape[2])  # type: ignore[union-attr]
        self.recorded = False
        self._logits = torch.empty(0)
        self._slot = self._held
        self._needs_masks = True
        self.why = ""
        self.start()

    def start(self) -> None:
        """Back to where the prompt ended."""
        self._slot = self._held
        fill(self._cache, self._layers)

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """Logits [B, vocab] after the tokens `ids` [B, 1], which are put into the cache."""
        self._set(ids)
        if self.recorded:
            self._recording.replay()
        else:
            self._logits = self._run()
        self._slot += 1
        return self._logits

    @torch.inference_mode()
    def again(self, ids: Tensor) -> Tensor:
        """The last step once more, by the modelling code."""
        self._slot -= 1
        self._set(ids)
        logits = self._run()
        self._slot += 1
        return logits

    @torch.inference_mode()
    def watched(self, ids: Tensor) -> list[Segment]:
        """The last step once more as it is done, with the times of its parts."""
        self._slot -= 1
        self._set(ids)
        if self.recorded:
            segments = self._recording.replay_timed()
        else:
            with self._recording.watch.on(self._network) as segments:
                self._run()
        self._slot += 1
        return joined(segments)

    @torch.inference_mode()
    def record(self, ids: Tensor) -> None:
        """Take down the step on `ids`; it is done as well, so the cache holds its token and counters have moved."""
        self._set(ids)
        before = self._attention.by_mask
        try:
            self._logits, self.recorded, self.why = self._recording.record(self._run), True, ""
        except NotRecordable as error:
            self.recorded, self.why = False, str(error)
        # A recording that was given up may not have come as far as the attention that needs them.
        self._needs_masks = not self.recorded or self._attention.by_mask > before

    def _set(self, ids: Tensor) -> None:
        self._inputs.set(ids, self._slot)
        if self._needs_masks:
            self._inputs.show_masks()

    def _run(self) -> Tensor:
        with self._attention.of_step(self._inputs):
            output = self._network(
                **self._inputs.arguments, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        logits: Tensor = output.logits
        return logits[:, -1]
