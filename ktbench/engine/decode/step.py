"""Ways to do the steps of a script: pass by pass through the modelling code, or replayed from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from ktbench.engine.decode.forward import Forward
from ktbench.engine.decode.inputs import StepInputs, Windows, fill, fixed_cache
from ktbench.engine.decode.program import Lowering, NotRecordable, Recording
from ktbench.engine.decode.timeline import Segment, joined
from ktbench.engine.experts import MoERuntimeState
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.workload_trace import Script, run_step


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


class Steps(Protocol):
    """Does the steps of a script, which are counted from 0; logits are [batch, vocab]."""

    def start(self) -> None:
        """Back to the state before step 0."""

    def step(self, number: int) -> Tensor:
        """The next step."""

    def again(self, number: int) -> Tensor:
        """The last step once more, through the modelling code."""

    def watched(self, number: int) -> list[Segment]:
        """The last step once more, taking down what the device role does when."""


class PassSteps:
    """Every step runs the modelling code."""

    def __init__(self, forward: Forward, state: MoERuntimeState, script: Script) -> None:
        self._forward, self._state, self._script = forward, state, script

    def start(self) -> None:
        """See `Steps`."""
        script = self._script
        self._forward.pad(script.padding)
        self._forward.restore(script.prompt_cache, script.workload.prompt)

    def step(self, number: int) -> Tensor:
        """See `Steps`. It is timed: no state is copied here for `again`."""
        return self._run(number)

    def again(self, number: int) -> Tensor:
        """See `Steps`. Where the cache cannot be cropped, the steps before it are repeated from the prompt."""
        if self._script.workload.phase == "decode" and not self._forward.crop(self._script.ids[number].shape[1]):
            self.start()
            for earlier in range(number):
                self._run(earlier)
        return self._run(number)

    def watched(self, number: int) -> list[Segment]:
        """See `Steps`."""
        with self._state.recorder.watch.on(self._forward.network) as segments:
            self.again(number)
        return joined(segments)

    def _run(self, number: int) -> Tensor:
        script = self._script
        self._state.begin(script.routing[number])
        return run_step(self._forward, script.workload, script.ids[number])


class LeanSteps:
    """Decode steps are replayed; the routing of each is put where the recording reads it."""

    def __init__(self, decoding: LeanDecoding, state: MoERuntimeState, script: Script) -> None:
        self._decoding, self._state, self._script = decoding, state, script
        self._all = _stacked([passes[0] for passes in script.routing])
        self._now = tuple(torch.empty_like(every[0]) for every in self._all)
        self._set(0)
        decoding.record(script.ids[0])

    def start(self) -> None:
        """See `Steps`."""
        self._decoding.start()

    def step(self, number: int) -> Tensor:
        """See `Steps`."""
        self._set(number)
        return self._decoding.step(self._script.ids[number])

    def again(self, number: int) -> Tensor:
        """See `Steps`."""
        self._set(number)
        return self._decoding.again(self._script.ids[number])

    def watched(self, number: int) -> list[Segment]:
        """See `Steps`."""
        self._set(number)
        return self._decoding.watched(self._script.ids[number])

    def _set(self, number: int) -> None:
        for now, every in zip(self._now, self._all, strict=True):
            now.copy_(every[number])
        ids, gates = self._now
        one_pass = [Routing(ids=ids[layer], gates=gates[layer]) for layer in range(len(ids))]
        self._state.begin(repeat(one_pass))  # a recording may run it several times


def _stacked(steps: Sequence[PassRouting]) -> tuple[Tensor, Tensor]:
    """Expert ids and gate weights, both [steps, layers, tokens, k]."""
    ids = torch.stack([torch.stack([layer.ids for layer in step]) for step in steps])
    gates = torch.stack([torch.stack([layer.gates for layer in step]) for step in steps])
    return ids, gates
