"""Synthetic routing: which experts each token selects, and with what weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["balanced", "zipf", "concentrated"]
_ZIPF_EXPONENT = 1.0


def route(
    kind: Kind, tokens: int, experts: int, top_k: int, seed: int | tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Expert ids and gate weights, both [tokens, top_k]: ids distinct within a token, weights positive with sum 1.

    balanced: every expert is selected equally often, give or take one. zipf: selection without replacement with
    probability falling as 1/rank over a seeded ranking of the experts (Plackett-Luce, by Gumbel keys). concentrated:
    all tokens select the same experts. Raises ValueError where `top_k` is not within 1 and `experts`.
    """
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k={top_k}: allowed are 1 to experts={experts}")
    if kind not in _PICK:
        raise ValueError(f"routing={kind!r}: allowed are {', '.join(_PICK)}")
    rng = np.random.default_rng(seed)
    ids = _PICK[kind](rng, tokens, experts, top_k)
    return ids.astype(np.int64), gate_weights(rng, tokens, top_k)


def _balanced(rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> NDArray[np.integer]:
    """Tokens deal from one shuffled deck of experts, round after round: any `top_k` consecutive cards differ."""
    deck = rng.permutation(experts)
    return deck[np.arange(tokens * top_k).reshape(tokens, top_k) % experts]


def _zipf(rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> NDArray[np.integer]:
    log_weight = -_ZIPF_EXPONENT * np.log(1.0 + rng.permutation(experts))
    keys = log_weight + rng.gumbel(size=(tokens, experts))
    return np.argsort(-keys, axis=1)[:, :top_k]


def _concentrated(rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> NDArray[np.integer]:
    return np.tile(rng.permutation(experts)[:top_k], (tokens, 1))


_PICK: dict[str, Callable[[np.random.Generator, int, int, int], NDArray[np.integer]]] = {
    "balanced": _balanced,
    "zipf": _zipf,
    "concentrated": _concentrated,
}


def gate_weights(rng: np.random.Generator, tokens: int, top_k: int) -> NDArray[np.float32]:
    """[tokens, top_k]: softmax of normal scores, as a renormalising router gives them."""
    scores = np.exp(rng.standard_normal((tokens, top_k)))
    gates: NDArray[np.float32] = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    return gates
