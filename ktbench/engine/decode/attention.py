"""Attention of one new token a sequence by our own kernel, put where Transformers looks attention up.

Letters: B sequences, H query heads, G key-value heads, T tokens, N positions of the cache, D width of a head.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ktbench.engine.decode.inputs import StepInputs
from ktbench.engine.decode.lowering import Lowering
from ktbench.engine.dense import DenseOperators
from ktbench.engine.forms import as_numpy

_NAME = "ktbench_decode"
# Arguments of an attention call that the kernel does not need.
NEUTRAL = {
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_router_logits",
    "position_embeddings",
    "is_causal",
    "dropout",
}

Attention = Callable[..., tuple[Tensor, Tensor | None]]


class PagedStep(Protocol):
    """What operators ask of the step of a serving engine, whose keys and values are in pages."""

    page: Tensor
    offset: Tensor

    @property
    def layers(self) -> Sequence[Any]:
        """Keys and values of the layers."""

    def attend(
        self, queries: Tensor, layer: Any, *, scale: float, window: int | None, sinks: Tensor | None = None
    ) -> Tensor:
        """[T, H, D'] of `queries` [T, H, D] on all positions up to them, or on a window of them."""


class PositionTable(Protocol):
    """What is computed for a range of positions before a step."""

    def make_room(self, room: int) -> None:
        """Compute the first `room` positions."""


class StepAttention:
    """Runs attention of a network natively inside `of_step`; outside of it the network's own runs."""

    reads_slot_on_device = False  # slot-dependent values are computed before replay, not recorded

    def __init__(self, network: PreTrainedModel, device: DenseOperators) -> None:
        self._config, self._device = network.config, device
        self.lower = Lowering(device)
        self._usual: str = network.config._attn_implementation
        self.inputs: StepInputs | None = None
        self.paged: PagedStep | None = None  # of a step that serves requests, instead
        self.tables: list[PositionTable] = []
        self.by_mask = 0  # calls that needed a mask

    @property
    def runs(self) -> bool:
        """Whether a step runs whose operators are native."""
        return self.inputs is not None or self.paged is not None

    @torch.inference_mode()
    def make_room(self, room: int) -> int:
        """Prepare what depends on a token's position for the first `room` of them; gives the positions of a cache."""
        for table in self.tables:
            table.make_room(room)
        return room

    @contextmanager
    def of_step(self, inputs: StepInputs) -> Iterator[None]:
        """Inside, attention reads the cache up to the token of these inputs."""
        self.inputs = inputs
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self)
        ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[self._usual])
        self._config._attn_implementation = _NAME
        try:
            yield
        finally:
            self._config._attn_implementation = self._usual
            self.inputs = None

    def __call__(  # noqa: PLR0913, as Transformers calls attention
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Output [B, T, H, D'] of `query` [B, H, T, D] on `key` [B, G, N, D] and `value` [B, G, N, D']."""
        unknown = {name for name, given in others.items() if given is not None} - NEUTRAL
        if unknown or query.dtype != torch.bfloat16 or query.shape[2] != 1:
            self.by_mask += 1
            extra = {"sliding_window": sliding_window, **({} if s_aux is None else {"s_aux": s_aux})}
            return self._original(module)(module, query, key, value, attention_mask, scaling=scaling, **extra, **others)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return self._native(query, key, value, scale, sliding_window, s_aux), None

    def _native(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, sinks: Tensor | None
    ) -> Tensor:
        inputs = self.inputs
        assert inputs is not None
        query = query.contiguous()
        first = inputs.first if window is None else inputs.first_near
        out = query.new_empty(query.shape[0], 1, query.shape[1], value.shape[-1])
        call = partial(
            self._device.attention.forward,
            as_numpy(query[:, :, 0]),
            as_numpy(key),
            as_numpy(value),
            first.numpy(),
            inputs.length.numpy(),
            as_numpy(out[:, 0]),
            scale=scale,
            sinks=None if sinks is None else sinks.float().numpy(),
        )
        self._device.recorder.do(call, query, key, value, out, sinks)
        return out

    def _original(self, module: nn.Module) -> Attention:
        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        found: Attention = ALL_ATTENTION_FUNCTIONS.get_interface(self._usual, eager)
        return found
