"""Operators of a recorded step on CPU cores: attention heads, rotary embedding and router in native calls.

Letters: B sequences, N positions there is room for, H query heads, G key-value heads, D width of a head, R rotated
numbers of a head; of the router T tokens, H hidden width, E experts, k experts of a token.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ktbench._kernels import SmallCall, prepare_heads
from ktbench.engine.decode.attention import PagedStep, StepAttention
from ktbench.engine.decode.inputs import CACHE, SLIDING, StepInputs
from ktbench.engine.decode.lazy import resolve_lazy
from ktbench.engine.dense import DenseOperators, FusedNorm, PackedLinear
from ktbench.engine.forms import as_numpy
from ktbench.engine.inject.forms import read_router
from ktbench.spec.shape import length_rotation


class HeadsAttention(nn.Module):
    """Replaces an attention module of plain heads whose projections are packed and share a matrix.

    In a recorded step of one token a sequence it does all between the hidden states and the output projection in three
    native calls; elsewhere the original runs, on its packed projections.
    """

    def __init__(self, original: nn.Module, device: DenseOperators, steps: StepAttention) -> None:
        super().__init__()
        if differs := _differs(original):
            raise ValueError(f"inject: the operator attention needs {differs} in {type(original).__name__}")
        self.original, self._device, self._steps = original, device, steps
        self._projections: PackedLinear = original.get_submodule("q_proj")  # type: ignore[assignment]
        self._output: nn.Module = original.get_submodule("o_proj")
        self._width = int(original.head_dim)  # type: ignore[arg-type]
        self._heads = self._projections.out_features // self._width
        norms: list[FusedNorm | None] = [getattr(original, name, None) for name in ("q_norm", "k_norm")]
        self._query_weight, self._key_weight = (None if norm is None else as_numpy(norm.weight) for norm in norms)
        form = next((norm.form for norm in norms if norm is not None), None)
        self._epsilon, self._offset = (0.0, 0.0) if form is None else (form.epsilon, float(form.offset))
        self._near = attends_near(original)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """[B, T, hidden] of `hidden_states` [B, T, hidden], as the original gives it."""
        inputs, paged = self._steps.inputs, self._steps.paged
        if paged is not None:
            gathered = self._attend_paged(hidden_states[0], paged, kwargs["position_embeddings"])
            return self._output(gathered.view(*hidden_states.shape[:2], -1)), None
        if inputs is None or args or hidden_states.shape[1] != 1:
            result: tuple[Tensor, Tensor | None] = self.original(hidden_states, *args, **kwargs)
            return result
        attended = self._attend(hidden_states, inputs, kwargs["position_embeddings"], kwargs[CACHE])
        output: Tensor = self._output(attended.view(*hidden_states.shape[:2], -1))
        return output, None

    def _attend(self, hidden: Tensor, inputs: StepInputs, rotation: tuple[Tensor, Tensor], cache: Any) -> Tensor:
        """[B, H, D]: one token of every sequence on all positions up to it."""
        layer = cache.layers[self.original.layer_idx]
        qkv = self._projections.projection.matrix(hidden)[:, 0]
        cos, sin = (one.expand(len(hidden), -1, -1)[:, 0] for one in rotation)
        queries = self._prepare(qkv, (cos, sin), inputs.slots, layer)
        out = hidden.new_empty(len(hidden), self._heads, layer.values.shape[-1])
        keys, values = as_numpy(layer.keys), as_numpy(layer.values)
        first = inputs.first_near if self._near else inputs.first
        arrays = (as_numpy(queries), keys, values, first.numpy(), inputs.length.numpy(), as_numpy(out))
        scale = float(self.original.scaling)  # type: ignore[arg-type]
        self._device.recorder.do(partial(self._device.attention.forward, *arrays, scale=scale), arrays)
        return out

    def _attend_paged(self, hidden: Tensor, inputs: PagedStep, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[T, H, D] of `hidden` [T, hidden]: tokens of any sequences on all positions up to them."""
        layer = inputs.layers[int(self.original.layer_idx)]  # type: ignore[arg-type]
        qkv = self._projections.projection.matrix(hidden)
        at = {"page": inputs.page.numpy(), "team": self._device.team}
        queries = self._prepare(qkv, (rotation[0][0], rotation[1][0]), inputs.offset, layer, **at)
        window = int(self.original.config.sliding_window) if self._near else None  # type: ignore[union-attr, arg-type]
        scale = float(self.original.scaling)  # type: ignore[arg-type]
        return inputs.attend(queries, layer, scale=scale, window=window)

    def _prepare(self, qkv: Tensor, rotation: tuple[Tensor, Tensor], position: Tensor, layer: Any, **at: Any) -> Tensor:
        """Queries [T, H, D] of projections [T, (H + 2 G) D]; keys and values go to their positions of the cache."""
        queries = qkv.new_empty(len(qkv), self._heads, self._width)
        cos, sin = rotation
        arrays = (
            as_numpy(cos),
            as_numpy(sin),
            position.numpy(),
            as_numpy(queries),
            as_numpy(layer.keys),
            as_numpy(layer.values),
        )
        weights = self._query_weight, self._key_weight
        call = partial(prepare_heads, as_numpy(qkv), *weights, self._epsilon, *arrays, offset=self._offset, **at)
        self._device.recorder.do(call, qkv, arrays)
        return queries


def attention_operator(original: nn.Module, device: DenseOperators, steps: StepAttention) -> nn.Module:
    """`HeadsAttention` in its place; the original where a file has its projections in several formats.

    Raises ValueError for a module of another form.
    """
    found = [getattr(original, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    formats = {one.projection.matrix.packed.precision for one in found if isinstance(one, PackedLinear)}
    return original if len(formats) > 1 else HeadsAttention(original, device, steps)


def _differs(attention: nn.Module) -> str:
    """What rules have to put inside an attention module before this operator takes its place, and have not."""
    projections = [attention.get_submodule(name) for name in ("q_proj", "k_proj", "v_proj")]
    packed = [projection.projection for projection in projections if isinstance(projection, PackedLinear)]
    if len(packed) < len(projections) or len(set(map(id, packed))) > 1:
        return "q_proj, k_proj and v_proj that are packed by the operator linear and share a matrix"
    if not all(isinstance(getattr(attention, name, None), FusedNorm | None) for name in ("q_norm", "k_norm")):
        return "norms of the operator rms_norm"
    return ""


def attends_near(attention: nn.Module) -> bool:
    """Whether an attention module looks at a sliding window only, by its network's configuration."""
    config: Any = attention.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return bool(kinds[attention.layer_idx] == SLIDING)
    return getattr(config, "sliding_window", None) is not None


class RotaryTable(nn.Module):
    """Replaces a network's rotary embedding: (hidden, positions [B, T]) to cosines and sines [B, T, R]."""

    def __init__(self, original: nn.Module, steps: StepAttention) -> None:
        super().__init__()
        self.original, self._steps = original, steps
        self._table: tuple[Tensor, Tensor] | None = None
        rotation = length_rotation(original.config.to_dict())  # type: ignore[union-attr, operator]
        self._most = sys.maxsize if rotation is None else rotation[1]
        steps.tables.append(self)

    def make_room(self, room: int) -> None:
        """Compute the first `room` positions. Raises ValueError where these depend on the length of the sequence."""
        if room > self._most:
            raise ValueError(f"rotations depend on the length of a sequence beyond {self._most} positions")
        if self._table is None or len(self._table[0]) < room:
            like = torch.zeros(1, dtype=torch.bfloat16)
            cos, sin = self.original(like, torch.arange(room)[None])
            self._table = cos[0].contiguous(), sin[0].contiguous()

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines in the type of `hidden`."""
        if not self._steps.runs or self._table is None:
            result: tuple[Tensor, Tensor] = self.original(hidden, position_ids)
            return result
        cos, sin = self._table
        return cos[position_ids], sin[position_ids]


class StepRouter(nn.Module):
    """Replaces a router of a form that `read_router` can read."""

    def __init__(self, original: nn.Module, device: DenseOperators, steps: StepAttention) -> None:
        super().__init__()
        self.original, self._device, self._steps = original, device, steps
        self._form = read_router(original)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [T, E] bf16, weights [T, k] and ids [T, k] int64 of `hidden` [..., H], as the original gives them.

        Of equal logits a recorded step chooses the lower id; which one PyTorch chooses is not defined.
        """
        if not self._steps.runs or hidden.dtype != torch.bfloat16:
            result: tuple[Tensor, Tensor, Tensor] = self.original(hidden)
            return result
        weight = self.original.get_parameter("weight")
        logits = nn.functional.linear(resolve_lazy(hidden).reshape(-1, weight.shape[1]), weight)
        return logits, *self._select(logits)

    def _select(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        form = self._form
        ids = logits.new_empty(len(logits), form.top_k, dtype=torch.int64)
        weights = logits.new_empty(ids.shape, dtype=form.weights)
        numbers = as_numpy(weights) if form.weights == torch.bfloat16 else weights.numpy()
        call = SmallCall.select_experts(as_numpy(logits), ids.numpy(), numbers, renormalised=form.renormalised)
        self._device.recorder.do(call.forward, logits, ids, weights)
        return weights, ids
