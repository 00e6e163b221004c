"""Tensors that a file holds in another form than the network, and the way back.

Letters: H heads, R rank of the latent, N width of a head's key without rotation, V width of its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Config = Mapping[str, Any]


class Change(Protocol):
    """One tensor of the network as one or more of the file. `join` undoes `split`; neither changes a number."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """What the file holds of a network's tensor."""
        ...

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """The network's tensor."""
        ...


class Same:
    """As it is."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """See `Change`."""
        return (tensor,)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """See `Change`."""
        return parts[0]


class Row:
    """A matrix of one row, which the file holds as a vector."""

    def split(self, tensor: Tensor, config: Config) -> tuple[Tensor, ...]:
        """[n] of [1, n]."""
        return (tensor.reshape(-1),)

    def join(self, parts: Sequence[Tensor], config: Config) -> Tensor:
        """[1, n] of [n]."""
        return parts[0].reshape(1, -1)


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Query or key rows of heads that llama.cpp rotates in neighbouring pairs, Transformers in halves.

    Only whole rows move, so `join` may be given rows of anything: weights, or quantised blocks as bytes. `heads` is the
    key of the configuration that counts the heads.
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


class LatentHeads:
    """`kv_b_proj` [H·(N+V), R] of latent attention as keys [H, R, N], transposed, and values [H, V, R]."""

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
