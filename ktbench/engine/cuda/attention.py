"""Attention of the network itself on a CUDA device: the kernels that run it, and masks that no kernel turns to NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from ktbench.engine.decode.inputs import StepInputs

_SDPA = "sdpa"
# Numbers of torch.nn.attention.SDPBackend.
_KERNELS = {0: "PyTorch's plain operations", 1: "FlashAttention", 2: "memory-efficient attention", 3: "cuDNN"}


def set_up_attention() -> None:
    """Attention of this process runs neither on cuDNN's kernels nor on masks with rows that see nothing.

    cuDNN's are PyTorch's first choice on compute capability 9.0 and plan anew for every shape: decode has one a step.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_SDPA, seeing_mask)


def seeing_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """Transformers' mask, bool [B, 1, T, N], whose rows of padding see everything.

    The softmax over a row that sees nothing is NaN in some kernels, and that NaN would stay in the cache. What rows of
    padding give is used nowhere.
    """
    mask: Tensor | None = sdpa_mask(*arguments, **named)
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)


class MaskedAttention:
    """Attention of a step as the network computes it, restricted by masks.

    What a step derives from its slot is a part of it (`follows`), so that little is left to do between replays.
    """

    follows = True

    def __init__(self) -> None:
        self.by_mask = 0
        self.lower = None

    def make_room(self, _room: int) -> None:
        """Nothing is kept at hand."""

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
        return function(*args, **named)
