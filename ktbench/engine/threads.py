"""The threads of the host role: PyTorch's own, which the fused operator runs on too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ktbench.engine.fused import FusedHost


def use_threads(asked: int | None, cores: int, host: FusedHost | None) -> None:
    """From now on `asked` threads run everything, one on each of `cores` where None. Raises ValueError for more."""
    if asked is not None and asked > cores:
        raise ValueError(f"engine.threads={asked}: allowed are 1 to {cores}, the cores of this process")
    torch.set_num_threads(asked or cores)
    if host is not None:
        host.resize(asked or cores)
