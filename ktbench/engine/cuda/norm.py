"""RMS norms of the device role on a CUDA device: one kernel of PyTorch in place of the family's six or more."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import rms_norm

from ktbench.engine.inject.forms import read_norm


class DeviceNorm(nn.Module):
    """(weight + offset) · x / sqrt(mean(x²) + epsilon) over the last dimension (Zhang and Sennrich, 2019).

    It is rounded once, where most families round x / sqrt(…) as well. Those that store the distance of the weight from
    one multiply in float32, and so does this: the sum does not fit bf16.
    """

    scale: Tensor

    def __init__(self, original: nn.Module) -> None:
        """In the place of a norm of the form that `read_norm` supports; raises ValueError for others."""
        super().__init__()
        form = read_norm(original)
        self.weight = original.get_parameter("weight")
        self._epsilon = form.epsilon
        scale = self.weight.detach() if form.offset == 0 else self.weight.detach().float() + form.offset
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] of `x` [..., K], in its type."""
        scale = self.scale
        if scale.dtype == x.dtype:
            return rms_norm(x, list(scale.shape), scale, self._epsilon)
        return rms_norm(x.float(), list(scale.shape), scale.float(), self._epsilon).to(x.dtype)
