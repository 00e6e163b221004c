"""Work in the order of a device, which nobody waits for on the way."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ktbench.engine.cuda.host_functions import cuda_runtime


class Stream(Protocol):
    """Does what it is given one after the other, kernels of PyTorch among them; its caller goes on at once."""

    def copy(self, to: Tensor, source: Tensor) -> None:
        """`to` gets what `source` holds by then. Whoever waits for it must go through this stream."""

    def call(self, function: int, data: int) -> None:
        """The C function `void (*)(void *)` at this address, with `data`. Nothing later begins before it is back."""

    def finish(self) -> None:
        """Return when everything is done."""


class CurrentStream:
    """PyTorch's current CUDA stream, at each call whichever it is then: in a capture the one that is captured."""

    def __init__(self) -> None:
        """Raises OSError where no CUDA runtime is loaded."""
        self._runtime = cuda_runtime()

    def copy(self, to: Tensor, source: Tensor) -> None:
        """See `Stream`. Python does not block where the side on the host is pinned."""
        to.copy_(source, non_blocking=True)

    def call(self, function: int, data: int) -> None:
        """See `Stream`. Raises RuntimeError with CUDA's own words."""
        self._runtime.launch_host_function(torch.cuda.current_stream().cuda_stream, function, data)

    def finish(self) -> None:
        """See `Stream`."""
        torch.cuda.current_stream().synchronize()
