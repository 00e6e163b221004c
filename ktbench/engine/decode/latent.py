"""Multi-head latent attention of one new token a sequence, on latents that are never expanded.

A key of head h is W_k[h] c for the latent c of a position, so its score with the query q is (W_k[h]ᵀ q) · c: queries
are multiplied instead of the whole context, and what a head gathers of the latents is multiplied by its W_v[h] at the
end (DeepSeek-V2, section 2.1.2). Transformers expands every position of the cache at every step.

Letters: B sequences, H heads, N positions of the cache, R width of a latent, K and P numbers of a head's query without
and with rotation, V width of a head's value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ktbench._kernels import Team, multiply_heads
from ktbench.engine.decode.gather import gather, scores_of
from ktbench.engine.decode.inputs import CACHE, StepInputs
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.forms import as_numpy

if TYPE_CHECKING:
    from ktbench.engine.decode.attention import StepAttention
    from ktbench.engine.dense import DenseOperators

_NAME = "ktbench_latent"


class LatentAttention(nn.Module):
    """Replaces a module of latent attention. All but the context is computed by the original.

    A single token of a sequence that has a cache attends to latents, in PyTorch's operations on any device.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        if not isinstance(original.get_submodule("kv_b_proj"), nn.Linear):
            raise ValueError(f"inject: latent_attention needs kv_b_proj of {type(original).__name__} as it is")
        self.original: Any = original
        config: Any = original.config
        self._config = copy.copy(config)
        self._config._attn_implementation = _NAME
        self._cached: Any = None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """[B, T, hidden] of `hidden_states` [B, T, hidden], as the original gives it."""
        cache: Any = kwargs.get(CACHE)
        original = self.original
        if hidden_states.shape[1] != 1 or not self._attends_to(cache):
            usual: tuple[Tensor, Tensor | None] = original(hidden_states, *args, **kwargs)
            return usual
        self._cached = cache.layers[original.layer_idx]
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self._attend)
        config, original.config, original.expand_kv = original.config, self._config, as_cached
        try:
            result: tuple[Tensor, Tensor | None] = original(hidden_states, *args, **kwargs)
        finally:
            original.config = config
            del original.expand_kv
        return result

    def _attends_to(self, cache: Any) -> bool:
        return cache is not None

    @property
    def weights(self) -> Tensor:
        """Of keys and values, [H, K + V, R]."""
        weight: Tensor = self.original.kv_b_proj.weight
        return weight.view(self.original.num_heads, -1, weight.shape[1])

    def _attend(
        self,
        _module: nn.Module,
        query: Tensor,
        latents: Tensor,
        rotated: Tensor,
        mask: Tensor | None,
        *,
        scaling: float,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """[B, 1, H, V] of `query` [B, H, 1, K + P] on `latents` [B, 1, N, R] and `rotated` keys [B, 1, N, P]."""
        width, weights = query.shape[-1] - rotated.shape[-1], self.weights
        plain, turned = query[:, :, 0, :width], query[:, :, 0, width:]
        keys, values = weights[:, :width], weights[:, width:]
        absorbed = torch.einsum("bhk,hkr->bhr", plain, keys)
        scores = scores_of(absorbed, latents[:, 0]) + scores_of(turned, rotated[:, 0])
        scores *= scaling
        if mask is not None:
            seen = mask[:, 0]
            scores = scores.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else scores + seen
        gathered = gather(scores.softmax(dim=-1), latents[:, 0])
        return torch.einsum("bhr,hvr->bhv", gathered, values)[:, None], None


def as_cached(latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """In the place of `expand_kv`."""
    return latents, rotated


class StepLatentAttention(LatentAttention):
    """The same in a decode step on CPU cores, in three native calls on a cache of fixed size."""

    def __init__(self, original: nn.Module, device: DenseOperators, steps: StepAttention) -> None:
        super().__init__(original)
        self._device, self._steps = device, steps

    def _attends_to(self, cache: Any) -> bool:
        return self._steps.inputs is not None and super()._attends_to(cache)

    def _attend(
        self,
        _module: nn.Module,
        query: Tensor,
        latents: Tensor,
        rotated: Tensor,
        mask: Tensor | None,
        *,
        scaling: float,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """See `LatentAttention`; the mask is not needed."""
        inputs, both = self._steps.inputs, self._cached.beside
        assert inputs is not None

        def gather(absorbed: Tensor) -> Tensor:
            gathered = absorbed.new_empty(*absorbed.shape[:2], latents.shape[-1])
            self._gather(absorbed, both, latents, inputs, gathered, scaling)
            return gathered

        device = self._device
        out = absorbed_attention(query[:, :, 0], self.weights, rotated.shape[-1], gather, device.team, device.recorder)
        return out[:, None], None

    def _gather(
        self, queries: Tensor, keys: Tensor, latents: Tensor, inputs: StepInputs, out: Tensor, scaling: float
    ) -> None:
        arrays = (
            as_numpy(queries),
            as_numpy(keys),
            as_numpy(latents),
            inputs.first.numpy(),
            inputs.length.numpy(),
            as_numpy(out),
        )
        call = partial(self._device.attention.forward, *arrays, scale=scaling)
        self._device.recorder.do(call, queries, keys, out)


def absorbed_attention(
    queries: Tensor,
    weights: Tensor,
    rotated: int,
    gather: Callable[[Tensor], Tensor],
    team: Team,
    recorder: CallRecorder,
) -> Tensor:
    """[T, H, V] of `queries` [T, H, K + P], the last P = `rotated` of which are, by `weights` [H, K + V, R].

    `gather` gives what attention of [T, H, R + P] gathers of latents, [T, H, R].
    """

    def multiply(x: Tensor, part: Tensor, to: Tensor, *, transposed: bool) -> None:
        recorder.do(
            partial(multiply_heads, as_numpy(x), as_numpy(part), as_numpy(to), team, transposed=transposed), x, to
        )

    width, rank = queries.shape[-1] - rotated, weights.shape[-1]
    absorbed = queries.new_empty(*queries.shape[:2], rank + rotated)
    absorbed[:, :, rank:] = queries[:, :, width:]
    multiply(queries[:, :, :width], weights[:, :width], absorbed[:, :, :rank], transposed=True)
    gathered = gather(absorbed)
    out = queries.new_empty(*queries.shape[:2], weights.shape[1] - width)
    multiply(gathered, weights[:, width:], out, transposed=False)
    return out
