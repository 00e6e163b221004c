"""Routing as it was recorded from real models: how often experts were selected, or which ones token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.arrays import array_names, read_array, split_array_name


class Trace(Protocol):
    """Selections to replay, of one MoE layer."""

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        """[tokens, top_k] expert ids of one step, distinct within a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountTrace:
    """How often each expert was selected (`counts` [E]): tokens draw from that, without replacement.

    Sequential draws with probability proportional to the counts are the Plackett-Luce model; adding Gumbel noise to the
    log counts and taking the highest gives such draws (Yellott 1977).
    """

    counts: NDArray[np.int64]
    top_k: int
    seed: int

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        """See `Trace`."""
        with np.errstate(divide="ignore"):
            log_counts = np.log(self.counts)
        noise = np.random.default_rng((self.seed, step)).gumbel(size=(tokens, len(self.counts)))
        return np.argsort(-(log_counts + noise), axis=1)[:, : self.top_k].astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTrace:
    """The experts of each token in turn (`ids` [T, k]), replayed from the token `first` on and around the end."""

    ids: NDArray[np.int64]
    first: int

    def draw(self, tokens: int, step: int) -> NDArray[np.int64]:
        """See `Trace`."""
        return self.ids[(self.first + step * tokens + np.arange(tokens)) % len(self.ids)]


def read_trace(trace: str, experts: int, top_k: int, seed: int) -> Trace:
    """The trace in FILE or FILE:ARRAY, an npz; without ARRAY the first one whose name starts with `decode`.

    An array [layers, experts] holds selection counts, one of [tokens, layers, k] expert ids; `seed` chooses the layer,
    and the token to begin with. Without an array called `decode…` the first is taken whose name ends with `experts`.
    Raises ValueError in one line where the file or the array is not there or not such a trace, and where it is one of
    a model with other numbers of experts.
    """
    file, name = split_array_name("workload.trace", trace)
    array = read_array("workload.trace", file, name or _default(array_names("workload.trace", file)))
    if array.dtype.kind not in "iu" or array.ndim not in (2, 3) or array.size == 0 or array.min() < 0:
        raise ValueError(
            f"workload.trace={trace}: array of {array.dtype} {list(array.shape)}, "
            "must hold counts [layers, experts] or expert ids [tokens, layers, k]"
        )
    rng = np.random.default_rng(seed)
    return (_counts if array.ndim == 2 else _tokens)(trace, array.astype(np.int64), (experts, top_k), rng)


def _default(names: list[str]) -> str:
    decode = [name for name in names if name.startswith("decode")]
    experts = [name for name in names if name.endswith("experts")]
    return (decode + experts + ["decode…"])[0]


def _counts(trace: str, counts: NDArray[np.int64], sizes: tuple[int, int], rng: np.random.Generator) -> CountTrace:
    experts, top_k = sizes
    if counts.shape[1] != experts:
        raise ValueError(f"workload.trace={trace}: counts of {counts.shape[1]} experts, the model has {experts}")
    layers = np.flatnonzero((counts > 0).sum(axis=1) >= top_k)
    if not len(layers):
        raise ValueError(f"workload.trace={trace}: in no layer were {top_k} or more experts selected")
    return CountTrace(counts=counts[rng.choice(layers)], top_k=top_k, seed=int(rng.integers(2**31)))


def _tokens(trace: str, ids: NDArray[np.int64], sizes: tuple[int, int], rng: np.random.Generator) -> TokenTrace:
    seen = int(ids.max()) + 1, ids.shape[2]
    if seen != sizes:
        raise ValueError(
            f"workload.trace={trace}: {seen[0]} experts and {seen[1]} per token, "
            f"the model has {sizes[0]} and {sizes[1]} per token"
        )
    layer = ids[:, rng.integers(ids.shape[1])]
    ordered = np.sort(layer, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError(f"workload.trace={trace}: a token selects the same expert twice")
    return TokenTrace(ids=layer, first=int(rng.integers(len(layer))))
