"""The decode step, from token ids to logits, and the runners that do it.

A step puts one token of every sequence into the key-value cache and gives the logits of the next:

1. `StepInputs` holds token ids, positions and the slot of the cache; a routing of the pass is set where it is replayed.
2. The network runs layer by layer. Attention reads the cache (`ktbench.engine.decode.attention`), the router selects
   experts, and the experts operator (`ktbench.engine.experts`) submits them to the host role: what it returns is a
   `LazyTensor`, so that the shared expert runs meanwhile and the sum of both waits.
3. The output head computes logits at the last position.

`PassRunner` runs the modelling code every time. `ReplayDecoder` records a step once, as a list of native calls on CPU
cores or as a CUDA graph, and replays it; `ReplayPrefill` does the same for chunks of prompts on a CUDA device.
Measurements feed them the steps of a trace (`ktbench.engine.replay.TraceReplay`), generation feeds them sampled tokens
(`ktbench.engine.decode.batch`).

Letters: B sequences, T tokens. Shorter sequences are padded on the left.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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

from ktbench.engine.decode.fixed import FixedPass, PassInputs
from ktbench.engine.decode.inputs import CACHE, DecodeState, StepInputs, StepRouting, fill, fixed_cache
from ktbench.engine.decode.prefill import ReplayPrefill
from ktbench.engine.decode.program import StepRecording
from ktbench.engine.decode.timeline import Segment, merge_segments

if TYPE_CHECKING:
    from ktbench.engine.backend import MoERuntimeState
    from ktbench.engine.cuda.attention import MaskedAttention
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.routing import PassRouting

# Layers that put new tensors in the place of old ones. Others, of linear attention say, write into theirs.
_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)
# Layers that hold every position: dropping the last ones brings back what was before them.
_CROPPABLE = (DynamicLayer, DynamicIndexedLayer)
_TRANSFORMERS_CACHES = "transformers.cache_utils"


class Forward:
    """Forward passes of a network through its modelling code, on a key-value cache that the network makes."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network
        self.cache: Cache | None = None
        self.padding = torch.zeros(0, dtype=torch.int64)
        self._padded = False
        self.seen = 0

    def reset(self) -> None:
        """Empty the cache."""
        self.cache, self.seen = None, 0

    def set_padding(self, padding: Tensor) -> None:
        """Sequences from now on begin after so many positions [B]."""
        self.padding, self._padded = padding, bool(padding.any())

    @torch.inference_mode()
    def prefill(self, ids: Tensor) -> Tensor:
        """Logits [B, vocab] of one pass over whole prompts, nothing cached."""
        logits: Tensor = self.network(input_ids=ids, use_cache=False, logits_to_keep=1, **self._masks(ids, 0)).logits
        return logits[:, -1]

    @torch.inference_mode()
    def extend(self, ids: Tensor) -> Tensor:
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

    def snapshot(self) -> DecodeState:
        """Where the sequences stand, in a copy that later passes leave alone."""
        return DecodeState(cache=_copy_cache(self.cache), seen=self.seen, padding=self.padding)

    def restore(self, state: DecodeState) -> None:
        """Continue from `state`, which is copied."""
        self.set_padding(state.padding)
        self.cache, self.seen = _copy_cache(state.cache), state.seen

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
        self.set_padding(self.padding[rows])


def _copy_cache(cache: Cache | None) -> Cache | None:
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
        run = self._forward.extend
        if self._prefill:
            self._forward.reset()
            run = self._forward.prefill if self._chunk is None else run
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

    def profile(self, ids: Tensor, routing: StepRouting) -> list[Segment]:
        """One step as `step` runs it, with the times of its parts."""
        with self._state.recorder.watch.on(self._forward.network) as segments:
            self.step(ids, routing)
        return merge_segments(segments)


class ReplayDecoder:
    """Steps of one token a sequence that are recorded once and replayed, on a cache of fixed size `room`.

    `recorded` and `why` are those of `FixedPass`. Raises ValueError for a cache that is more than keys and values.
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
        self.room = room = attention.make_room(room)
        self._inputs = StepInputs.of(network.config, state.padding, room)
        layers: list[Any] = [] if state.cache is None else list(state.cache.layers)
        self._cache = fixed_cache(layers, room, self._inputs.slot)
        self._pass = FixedPass(network, attention, recording, moe, self._inputs, self._cache)
        self._slot = 0
        self.begin(state)

    @property
    def recorded(self) -> bool:
        """Whether steps are replayed."""
        return self._pass.recorded

    @property
    def why(self) -> str:
        """Why they are not, once that was tried."""
        return self._pass.why

    @property
    def width(self) -> int:
        return len(self._inputs.first)

    def begin(self, state: DecodeState) -> None:
        assert state.cache is not None
        self._inputs.first.copy_(state.padding)
        self._slot = state.seen
        fill(self._cache, state.cache.layers)

    def record(self, ids: Tensor, routing: StepRouting) -> None:
        """Record the step on `ids`; it is done as well, so the cache holds its token and counters have moved."""
        self._pass.record(self._given(ids, routing))

    def step(self, ids: Tensor, routing: StepRouting) -> Tensor:
        """See `PassRunner`. The first step is recorded before, unless `record` was called."""
        if not self.recorded and not self.why:
            self.record(ids, routing)
        logits = self._pass.run(self._given(ids, routing))
        self._slot += 1
        return logits

    def undo(self, tokens: int) -> bool:
        self._slot -= tokens
        return True

    def run_model(self, ids: Tensor, routing: StepRouting) -> Tensor:
        logits = self._pass.run_model(self._given(ids, routing))
        self._slot += 1
        return logits

    def profile(self, ids: Tensor, routing: StepRouting) -> list[Segment]:
        segments = self._pass.profile(self._given(ids, routing))
        self._slot += 1
        return segments

    def _given(self, ids: Tensor, routing: StepRouting) -> PassInputs:
        (of_pass,) = routing or (None,)
        return PassInputs(ids, self._slot, of_pass)

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
DecodeRunner = PassRunner | ReplayDecoder | ReplayPrefill
