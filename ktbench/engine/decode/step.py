"""The decode step, from token ids to logits, and the runners that do it.

A step puts one token of every sequence into the key-value cache and gives the logits of the next:

1. `StepInputs` holds token ids, positions and the slot of the cache; a routing of the pass is set where it is replayed.
2. The network runs layer by layer. Attention reads the cache (`ktbench.engine.decode.attention`), the router selects
   experts, and the experts operator (`ktbench.engine.experts`) submits them to the host role: what it returns is a
   `LazyTensor`, so that the shared expert runs meanwhile and the sum of both waits.
3. The output head computes logits at the last position.

`PassRunner` runs the modelling code every time. `ReplayDecoder` records a step once, as a list of native calls on CPU
cores or as a CUDA graph, and replays it. Measurements feed them the steps of a trace
(`ktbench.engine.replay.TraceReplay`), generation feeds them sampled tokens (`ktbench.engine.decode.batch`).

Letters: B sequences, T tokens. Shorter sequences are padded on the left.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from ktbench.engine.decode.inputs import CACHE, AttentionWindows, StepInputs, fill, fixed_cache
from ktbench.engine.decode.program import NotRecordable, StepRecording
from ktbench.engine.decode.timeline import Segment, joined

if TYPE_CHECKING:
    from ktbench.engine.cuda.role import MaskedAttention
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.experts import MoERuntimeState
    from ktbench.engine.routing import PassRouting

# Layers that put new tensors in the place of old ones. Others, of linear attention say, write into theirs.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)
# Layers that hold every position: dropping the last ones brings back what was before them.
_CROPPABLE = (DynamicLayer, DynamicIndexedLayer)
_TRANSFORMERS_CACHES = "transformers.cache_utils"

# The routing of each pass of a step (a step of several chunks has several); None leaves it to the routers.
StepRouting = Sequence["PassRouting"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeState:
    """Where sequences stand: their cache after `seen` positions, of which the first `padding` [B] are padding."""

    cache: Cache | None
    seen: int
    padding: Tensor


class Forward:
    """Forward passes of a network through its modelling code, on a key-value cache that the network makes."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.cache: Cache | None = None
        self.padding = torch.zeros(0, dtype=torch.int64)
        self._padded = False
        self.seen = 0

    def forget(self) -> None:
        """Empty the cache."""
        self.cache, self.seen = None, 0

    def pad(self, padding: Tensor) -> None:
        """Sequences from now on begin after so many positions [B]."""
        self.padding, self._padded = padding, bool(padding.any())

    @torch.inference_mode()
    def whole(self, ids: Tensor) -> Tensor:
        """Logits [B, vocab] of one pass over whole prompts, nothing cached."""
        logits: Tensor = self.network(input_ids=ids, use_cache=False, logits_to_keep=1, **self._masks(ids, 0)).logits
        return logits[:, -1]

    @torch.inference_mode()
    def onward(self, ids: Tensor) -> Tensor:
        """Logits [B, vocab] of one pass that continues what the cache holds."""
        masks = self._masks(ids, self.seen)
        self.seen += ids.shape[1]
        output = self.network(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE: self.cache}, **masks)
        self.cache = getattr(output, CACHE)
        logits: Tensor = output.logits
        return logits[:, -1]

    def _masks(self, ids: Tensor, seen: int) -> dict[str, Tensor]:
        """A mask [B, positions so far] and positions [B, T] for padded sequences; nothing without padding."""
        if not self._padded:
            return {}
        columns = torch.arange(seen + ids.shape[1], device=ids.device)
        inside = (columns >= self.padding[:, None]).long()
        positions = (columns[seen:] - self.padding[:, None]).clamp(min=0)
        return {"attention_mask": inside, "position_ids": positions}

    def remember(self) -> DecodeState:
        """Where the sequences stand, in a copy that later passes leave alone."""
        return DecodeState(cache=_copied(self.cache), seen=self.seen, padding=self.padding)

    def restore(self, state: DecodeState) -> None:
        """Continue from `state`, which is copied."""
        self.pad(state.padding)
        self.cache, self.seen = _copied(state.cache), state.seen

    def crop(self, tokens: int) -> bool:
        """Drop the last positions from the cache; False, and nothing done, where it does not hold what was before."""
        cache: Any = self.cache
        plain = cache is not None and not hasattr(cache, "linear_cache")
        if not plain or any(type(layer) not in _CROPPABLE for layer in cache.layers):
            return False
        cache.crop(-tokens)
        self.seen -= tokens
        return True

    @property
    def can_select(self) -> bool:
        """Whether the cache is all of Transformers' own layers, which can continue with some of their sequences."""
        cache = self.cache
        return cache is not None and all(type(one).__module__ == _TRANSFORMERS_CACHES for one in (cache, *cache.layers))

    def select(self, rows: Tensor) -> None:
        """Continue with these rows of the batch."""
        assert self.cache is not None
        rows = rows.to(self.padding.device)
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]
        self.pad(self.padding[rows])


def _copied(cache: Cache | None) -> Cache | None:
    """A copy that later passes leave alone; tensors that they replace are shared."""
    if cache is None:
        return None
    copied: Any = copy.copy(cache)
    copied.layers = [copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer) for layer in cache.layers]
    if hasattr(copied, "linear_cache"):  # of MiniMax, beside its layers
        copied.linear_cache = list(copied.linear_cache)
    whole: Cache = copied
    return whole


class PassRunner:
    """Every step runs the modelling code: one pass over all of its tokens, or one for every `chunk` of them.

    Token ids are int64 [B, T], logits [B, vocab] at the last position. With `prefill` each step is a prompt of its own,
    else it continues the cache of `forward`.
    """

    def __init__(
        self, forward: Forward, state: MoERuntimeState, *, chunk: int | None = None, prefill: bool = False
    ) -> None:
        self._forward, self._state, self._chunk, self._prefill = forward, state, chunk, prefill

    @property
    def width(self) -> int:
        """B."""
        return len(self._forward.padding)

    def begin(self, state: DecodeState) -> None:
        """The next step continues from `state`, which is left as it is."""
        self._forward.restore(state)

    def step(self, ids: Tensor, routing: StepRouting) -> Tensor:
        """One step; the next one may overwrite its logits. This is what is timed: it copies no cache."""
        parts = torch.split(ids, self._chunk or ids.shape[1], dim=1)
        of_passes: Sequence[PassRouting | None] = routing or [None] * len(parts)
        run = self._forward.onward
        if self._prefill:
            self._forward.forget()
            run = self._forward.whole if self._chunk is None else run
        for part, of_pass in zip(parts, of_passes, strict=True):
            self._state.begin(of_pass)
            logits = run(part)
        return logits

    def undo(self, tokens: int) -> bool:
        """Drop the tokens of the last step; False, and nothing done, where the cache does not hold what was before.

        A sliding window or the state of a linear attention cannot be cropped.
        """
        return self._prefill or self._forward.crop(tokens)

    def run_model(self, ids: Tensor, routing: StepRouting) -> Tensor:
        """One step through the modelling code, whatever `step` runs."""
        return self.step(ids, routing)

    def watched(self, ids: Tensor, routing: StepRouting) -> list[Segment]:
        """One step as `step` runs it, with the times of its parts."""
        with self._state.recorder.watch.on(self._forward.network) as segments:
            self.step(ids, routing)
        return joined(segments)


class ReplayDecoder:
    """Steps of one token a sequence that are recorded once and replayed, on a cache of fixed size `room`.

    Ids, positions, cache and routing lie in memory that does not move, so that a recording (a program of calls or a
    CUDA graph) reads what changes from step to step. `recorded` is whether steps are replayed; `why` is the reason
    where they cannot be, then the modelling code runs. Raises ValueError for a cache that is more than keys and values.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        attention: StepAttention | MaskedAttention,
        recording: StepRecording,
        moe: MoERuntimeState,
        state: DecodeState,
        room: int,
    ) -> None:
        self._network, self._attention, self._recording, self._moe = network, attention, recording, moe
        self.room, self.recorded, self.why = room, False, ""
        config = network.config
        additive = torch.bfloat16 if config._attn_implementation == "eager" else None
        self._inputs = StepInputs(state.padding, room, AttentionWindows.of(config), additive)
        self._routing: PassRouting | None = None
        attention.make_room(room)
        layers: list[Any] = [] if state.cache is None else list(state.cache.layers)
        self._cache = fixed_cache(layers, room, self._inputs.slot)
        self._logits = torch.empty(0)
        self._needs_masks = True
        self._slot = 0
        self.begin(state)

    @property
    def width(self) -> int:
        """See `PassRunner`."""
        return len(self._inputs.first)

    def begin(self, state: DecodeState) -> None:
        """See `PassRunner`."""
        assert state.cache is not None
        self._inputs.first.copy_(state.padding)
        self._slot = state.seen
        fill(self._cache, state.cache.layers)

    @torch.inference_mode()
    def record(self, ids: Tensor, routing: StepRouting) -> None:
        """Record the step on `ids`; it is done as well, so the cache holds its token and counters have moved."""
        self._set(ids, routing)
        before = self._attention.by_mask
        try:
            self._logits, self.recorded, self.why = self._recording.record(self._run), True, ""
        except NotRecordable as error:
            self.recorded, self.why = False, str(error)
        # A recording that was given up may not have come as far as the attention that needs them.
        self._needs_masks = not self.recorded or self._attention.by_mask > before

    @torch.inference_mode()
    def step(self, ids: Tensor, routing: StepRouting) -> Tensor:
        """See `PassRunner`. The first step is recorded before, unless `record` was called."""
        if not self.recorded and not self.why:
            self.record(ids, routing)
        self._set(ids, routing)
        if self.recorded:
            self._recording.replay()
        else:
            self._logits = self._run()
        self._slot += 1
        return self._logits

    def undo(self, tokens: int) -> bool:
        """See `PassRunner`."""
        self._slot -= tokens
        return True

    @torch.inference_mode()
    def run_model(self, ids: Tensor, routing: StepRouting) -> Tensor:
        """See `PassRunner`."""
        self._set(ids, routing)
        self._slot += 1
        return self._run()

    @torch.inference_mode()
    def watched(self, ids: Tensor, routing: StepRouting) -> list[Segment]:
        """See `PassRunner`."""
        self._set(ids, routing)
        self._slot += 1
        if self.recorded:
            return joined(self._recording.replay_timed())
        with self._recording.watch.on(self._network) as segments:
            self._run()
        return joined(segments)

    def _set(self, ids: Tensor, routing: StepRouting) -> None:
        """Write what changes from step to step to where the recording reads it."""
        self._inputs.set(ids, self._slot)
        if not self._attention.follows:
            self._inputs.follow()
            if self._needs_masks:
                self._inputs.show_masks()
        if routing is None:
            return
        (of_pass,) = routing
        if self._routing is None:
            self._routing = of_pass.clone()
        else:
            self._routing.copy_(of_pass)

    def _run(self) -> Tensor:
        """The modelling code, in inference mode; a recording may run it several times."""
        self._moe.begin(self._routing)
        with self._attention.of_step(self._inputs):
            output = self._network(**self._inputs.arguments, **{CACHE: self._cache}, use_cache=True, logits_to_keep=1)
        logits: Tensor = output.logits
        return logits[:, -1]

    def select(self, rows: Tensor) -> DecodeState:
        """Where these sequences of the batch stand, in a copy."""
        layers: list[Any] = [
            _dynamic(fixed.keys[rows, :, : self._slot], fixed.values[rows, :, : self._slot]) for fixed in self._fixed
        ]
        return DecodeState(cache=Cache(layers=layers), seen=self._slot, padding=self._inputs.first[rows])

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return sum(one.nbytes for fixed in self._fixed for one in (fixed.keys, fixed.values))

    @property
    def _fixed(self) -> list[Any]:
        return list(self._cache.layers)


def _dynamic(keys: Tensor, values: Tensor) -> DynamicLayer:
    layer = DynamicLayer()  # type: ignore[no-untyped-call]
    layer.keys, layer.values, layer.is_initialized = keys, values, True
    return layer


# Runs the steps of `width` sequences, whatever they come from.
StepRunner = PassRunner | ReplayDecoder
