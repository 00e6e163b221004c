"""Synthetic workloads: token ids of prompts, and the experts and gate weights that each token selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ktbench.engine.workload.recorded import read_trace
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape

# Expert ids int64 and gate weights float32, both [tokens, top_k].
Selection = tuple[NDArray[np.int64], NDArray[np.float32]]
Kind = Literal["balanced", "zipf", "concentrated"]
_ZIPF_EXPONENT = 1.0


def prompt_ids(vocab: int, batch: int, tokens: int, seed: int | tuple[int, ...]) -> NDArray[np.int64]:
    """Uniform token ids [batch, tokens], each below `vocab`: equal arguments give equal ids on any machine.

    Raises ValueError where a size is below 1.
    """
    for name, value in (("vocab", vocab), ("batch", batch), ("tokens", tokens)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    return np.random.default_rng(seed).integers(vocab, size=(batch, tokens), dtype=np.int64)


def prompt_padding(batch: int, prompt: int, shortest: int | None) -> NDArray[np.int64]:
    """Positions of padding [batch] before each prompt: lengths go evenly from `prompt` down to `shortest`."""
    lengths = np.linspace(prompt, shortest or prompt, batch)
    return prompt - np.round(lengths).astype(np.int64)


def layer_selections(workload: WorkloadSpec, shape: MoEShape) -> tuple[Selection, ...]:
    """One selection for each step of a workload with phase=layer; with `active_experts` the ids are below that number.

    Raises ValueError for routing=model, which needs a router, and for a trace that cannot be read or does not match.
    """
    draw = _draw(workload, shape)
    return tuple(draw(step) for step in range(workload.steps))


def _draw(workload: WorkloadSpec, shape: MoEShape) -> Callable[[int], Selection]:
    kind, tokens, top_k, seed = workload.routing, workload.batch, shape.top_k, workload.seed
    if kind == "model":
        raise ValueError("workload.routing=model: a layer alone has no router")
    if kind != "recorded":
        experts = workload.active_experts or shape.experts
        return lambda step: route(kind, tokens, experts, top_k, (seed, step))
    if workload.trace is None:
        raise ValueError("workload.routing=recorded: set workload.trace to FILE or FILE:ARRAY")
    trace = read_trace(workload.trace, shape.experts, top_k, seed)
    return lambda step: (trace.draw(tokens, step), gate_weights(np.random.default_rng((seed, step)), tokens, top_k))


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
