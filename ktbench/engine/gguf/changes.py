"""Tensors that a GGUF file holds in another form than Transformers, in both directions.

Letters: H heads, R rank of the latent, N width of a head's key without rotation, V width of its value. Source of the
forms: llama.cpp's conversion scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from ktbench.engine.gguf.facts import Config

if TYPE_CHECKING:
    from torch import Tensor


class TensorChange:
    """A tensor of the network as one or more of the file, here as it is.

    Where it `keeps_rows` only whole rows move, so `join` may be given rows of anything: weights, or quantised blocks as
    bytes.
    """

    keeps_rows: ClassVar[bool] = True

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """What the file holds of a network's tensor."""
        return (tensor,)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The network's tensor."""
        return parts[0]


class VectorRow(TensorChange):
    """A matrix of one row, which the file holds as a vector."""

    keeps_rows = False

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """[n] of [1, n]."""
        return (tensor.reshape(-1),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[1, n] of [n]."""
        return parts[0].reshape(1, -1)


@dataclass(frozen=True, slots=True)
class RotaryRows(TensorChange):
    """Query or key rows of heads that llama.cpp rotates in neighbouring pairs, Transformers in halves.

    `heads` is the key of the configuration that counts the heads.
    """

    heads: str

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """Rows [H, 2, half] to [H, half, 2]."""
        return (self._swap(tensor, (config[self.heads], 2, -1)),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """Rows [H, half, 2] to [H, 2, half]."""
        return self._swap(parts[0], (config[self.heads], -1, 2))

    def _swap(self, tensor: Tensor, rows: tuple[int, int, int]) -> Tensor:
        return tensor.reshape(*rows, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


class LatentHeads(TensorChange):
    """`kv_b_proj` [H·(N+V), R] of latent attention as keys [H, R, N], transposed, and values [H, V, R]."""

    keeps_rows = False

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """Keys and values of each head."""
        heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
        both = tensor.reshape(heads, keys + config["v_head_dim"], -1)
        return both[:, :keys].swapaxes(1, 2), both[:, keys:]

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[H·(N+V), R] of keys and values."""
        import torch

        keys, values = parts
        return torch.cat([keys.swapaxes(1, 2), values], dim=1).reshape(-1, values.shape[-1])


class DeltaHeads(TensorChange):
    """`in_proj_qkvz` of a gated delta net, which llama.cpp has as queries, keys and values of all heads, and as gates.

    Rows of the network: for each key head its query, its key, then values and gates of the value heads that share it.
    """

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """Rows [2·H·N + V, …] and gates [V, …], of H key heads N wide and values V wide together."""
        heads, ends = self._sizes(config)
        groups = tensor.reshape(heads, ends[-1], *tensor.shape[1:])
        parts = [groups[:, begin:end].reshape(-1, *tensor.shape[1:]) for begin, end in pairwise((0, *ends))]
        return _stack(parts[:-1], 0), parts[-1]

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The rows in the network's order."""
        heads, ends = self._sizes(config)
        whole, row = _stack(parts, 0), parts[0].shape[1:]
        pieces = [whole[heads * begin : heads * end].reshape(heads, -1, *row) for begin, end in pairwise((0, *ends))]
        return _stack(pieces, 1).reshape(-1, *row)

    def _sizes(self, config: Config) -> tuple[int, tuple[int, ...]]:
        """Key heads, and where in the rows of one its query, key, values and gates end."""
        heads, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
        return heads, tuple(accumulate((width, width, values, values)))


def _stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """One tensor of several, or one array where they are the bytes of a file."""
    import numpy as np
    import torch

    return torch.cat(list(parts), axis) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts, axis)


class DepthwiseKernel(TensorChange):
    """A convolution of each channel by itself, whose kernels the file holds without their dimension of 1."""

    keeps_rows = False

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """[n, width] of [n, 1, width]."""
        return (tensor.squeeze(1),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[n, 1, width] of [n, width]."""
        return parts[0].unsqueeze(1)


class NormPlusOne(TensorChange):
    """A norm that scales by 1 + its weight, where the file holds the sum, in float32."""

    keeps_rows = False

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """1 + the weight."""
        return (tensor.float() + 1,)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The weight."""
        return parts[0] - 1


class DecayRate(TensorChange):
    """The logarithm of how fast a state decays, where the file holds the negative rate, in float32."""

    keeps_rows = False

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """-exp of it."""
        return (-tensor.float().exp(),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The logarithm."""
        return (-parts[0]).log()
