"""A pass of so many tokens a sequence on a cache of fixed size: recorded once, replayed wherever its tokens are put."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ktbench.engine.decode.inputs import CACHE, StepInputs, write_at
from ktbench.engine.decode.program import NotRecordable, StepRecording
from ktbench.engine.decode.timeline import Segment, merge_segments

if TYPE_CHECKING:
    from ktbench.engine.backend import MoERuntimeState
    from ktbench.engine.cuda.attention import MaskedAttention
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.routing import PassRouting


class PassInputs(NamedTuple):
    """What changes from pass to pass: ids [B, T], the slot of the first of them, and a routing in place of routers'."""

    ids: Tensor
    slot: int
    routing: PassRouting | None


class FixedPass:
    """Passes of T tokens a sequence at some slot of the cache, to logits [B, vocab] at the last of them.

    Ids, positions, cache and routing lie in memory that does not move, so that a recording (a program of calls or a
    CUDA graph) reads what changes from pass to pass. `recorded` is whether passes are replayed; `why` is the reason
    where they cannot be, then the modelling code runs. Passes on the same `cache` may be of different lengths.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        attention: StepAttention | MaskedAttention,
        recording: StepRecording,
        moe: MoERuntimeState,
        inputs: StepInputs,
        cache: Cache,
    ) -> None:
        self._network, self._attention, self._recording, self._moe = network, attention, recording, moe
        self._inputs, self._cache = inputs, cache
        self.recorded, self.why = False, ""
        self._routing: PassRouting | None = None
        self._logits = torch.empty(0)
        self._needs_masks = True

    @torch.inference_mode()
    def record(self, given: PassInputs) -> None:
        """Record a pass; it is done as well, so the cache holds its tokens and counters have moved."""
        self._set(given)
        before = self._attention.by_mask
        try:
            self._logits, self.recorded, self.why = self._recording.record(self._run), True, ""
        except NotRecordable as error:
            self.recorded, self.why = False, str(error)
        # A recording that was given up may not have come as far as the attention that needs them.
        self._needs_masks = not self.recorded or self._attention.by_mask > before

    @torch.inference_mode()
    def run(self, given: PassInputs) -> Tensor:
        """The logits of a pass, replayed where it is recorded; the next one may overwrite them."""
        self._set(given)
        if self.recorded:
            self._recording.replay()
        else:
            self._logits = self._run()
        return self._logits

    @torch.inference_mode()
    def run_model(self, given: PassInputs) -> Tensor:
        """The same through the modelling code in any case."""
        self._set(given)
        return self._run()

    @torch.inference_mode()
    def profile(self, given: PassInputs) -> list[Segment]:
        """A pass as `run` runs it, with the times of its parts."""
        self._set(given)
        if self.recorded:
            return merge_segments(self._recording.replay_timed())
        with self._recording.watch.on(self._network) as segments:
            self._run()
        return merge_segments(segments)

    def _set(self, given: PassInputs) -> None:
        """Write what changes from pass to pass to where the recording reads it."""
        ids, slot, routing = given
        self._inputs.set(ids, slot)
        if not self._attention.reads_slot_on_device:
            self._inputs.follow()
            if self._needs_masks:
                self._inputs.show_masks()
        if routing is None:
            return
        if self._routing is None:
            self._routing = routing.clone()
        else:
            self._routing.copy_(routing)

    def _run(self) -> Tensor:
        """The modelling code, in inference mode; a recording may run it several times."""
        self._moe.begin(self._routing)
        write_at(self._cache, self._inputs.slot)
        with self._attention.of_step(self._inputs):
            output = self._network(**self._inputs.arguments, **{CACHE: self._cache}, use_cache=True, logits_to_keep=1)
        logits: Tensor = output.logits
        return logits[:, -1]
