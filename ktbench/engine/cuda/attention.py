"""Attention of the network itself on a CUDA device: the kernels that run it, and masks that no kernel turns to NaN.

Letters: B sequences, H query heads, G key-value heads, T tokens, N positions of the cache, D and V widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ktbench.engine.decode.gather import PART, gather, scores_of
from ktbench.engine.decode.inputs import StepInputs

_SDPA = "sdpa"
# Numbers of torch.nn.attention.SDPBackend.
_KERNELS = {0: "PyTorch's plain operations", 1: "FlashAttention", 2: "memory-efficient attention", 3: "cuDNN"}
# Positions from which on a token with a mask attends by matrix products.
LONG = 512
# Arguments of an attention call that products have no answer to.
_SPECIAL = ("softcap", "position_bias", "output_attentions")


def set_up_attention() -> None:
    """Attention of this process runs neither on cuDNN's kernels nor on masks with rows that see nothing.

    cuDNN's are PyTorch's first choice on compute capability 9.0 and plan anew for every shape: decode has one a step.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_SDPA, seeing_mask)
    ALL_ATTENTION_FUNCTIONS.register(_SDPA, attend)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """Transformers' attention, [B, T, H, V]; of one token a sequence with a mask and a long context by products."""
    positions = key.shape[2]
    by_products = query.shape[2] == 1 and attention_mask is not None and positions >= LONG and not positions % PART
    if not by_products or any(named.get(one) for one in _SPECIAL):
        usual: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **named)
        return usual
    return attend_in_parts(query, key, value, attention_mask, named.get("scaling")), None


def attend_in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """[B, 1, H, V] of `query` [B, H, 1, D], `key` [B, G, N, D], `value` [B, G, N, V] and `mask` [B, 1, 1, N], bool."""
    if has_torch_function_unary(query):
        shown: Tensor = handle_torch_function(attend_in_parts, (query,), query, key, value, mask, scaling)
        return shown
    assert mask is not None
    batch, groups = key.shape[:2]
    queries = query.reshape(batch * groups, -1, query.shape[3])
    scores = scores_of(queries, key.flatten(0, 1)).mul_(query.shape[3] ** -0.5 if scaling is None else scaling)
    scores.view(batch, groups, *scores.shape[1:]).masked_fill_(~mask, -torch.inf)
    return gather(scores.softmax(dim=-1), value.flatten(0, 1)).view(batch, 1, query.shape[1], -1)


def seeing_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """Transformers' mask, bool [B, 1, T, N], whose rows of padding see everything.

    The softmax over a row that sees nothing is NaN in some kernels, and that NaN would stay in the cache. What rows of
    padding give is used nowhere.
    """
    mask: Tensor | None = sdpa_mask(*arguments, **named)
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


class MaskedAttention:
    """Attention of a step as the network computes it, restricted by masks.

    Slot-dependent values are recorded (`reads_slot_on_device`), so that little is left to do between replays.
    """

    reads_slot_on_device = True

    def __init__(self) -> None:
        self.by_mask = 0
        self.lower = None

    def make_room(self, room: int) -> int:
        """Gives the positions of a cache: a long one can be taken in parts."""
        return room if room < LONG else -(-room // PART) * PART

    @contextmanager
    def of_step(self, inputs: StepInputs) -> Iterator[None]:
        """A step runs inside, which needs its masks."""
        inputs.follow()
        inputs.show_masks()
        yield


class AttentionWatch(TorchFunctionMode):
    """Inside, notes which kernels PyTorch chooses for attention; `chosen` are their names."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: dict[str, None] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What PyTorch is asked for is done as ever."""
        named = dict(kwargs or {})
        if function is scaled_dot_product_attention:
            self.chosen[_KERNELS.get(torch._fused_sdp_choice(*args, **named), "kernels unknown to us")] = None
        if function is attend_in_parts:
            self.chosen["matrix products over parts of the context"] = None
        return function(*args, **named)
