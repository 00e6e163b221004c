"""Calls that meet every expert of every layer once, with their output in float32 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.observe import truth_of
from ktbench.engine.protocol import ExpertsObservation, Survey, Surveyed
from ktbench.engine.routing import Routing
from ktbench.spec.shape import MoEShape

# Rows of a long call that are compared.
_MOST_ROWS = 512
# Gate weight of all but one expert of a token whose gates are steep, over that one's: lower than what an operator could
# drop without being noticed among equal ones, and high enough that a token without them is beyond every tolerance.
_STEEP = 0.045
# Float32 outputs that are kept for the next cell that runs on the same weights.
_KEPT_NUMBERS = 1 << 25


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unit:
    """A call: `ids` and `gates` [T, k], the `rows` [R] of it that are compared, and the experts that these meet."""

    ids: NDArray[np.int64]
    gates: NDArray[np.float32]
    rows: NDArray[np.int64]
    experts: frozenset[int]


class ExpertsSurvey:
    """Calls of `tokens` that meet the experts of `layers` layers: each expert of a layer at a gate like the others'.

    Other tokens have one high gate and all others low, so that what drops low ones is noticed. Inputs are normal, as a
    norm before the experts gives them. `kept` holds float32 outputs by the weights that they came from.
    """

    def __init__(self, shape: MoEShape, layers: int, tokens: int, seed: int, most: int) -> None:
        self._shape, self._tokens, self._seed = shape, tokens, seed
        self._truths: dict[Hashable, tuple[object, NDArray[np.float32]]] = {}
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(layers)[: max(1, most // shape.experts)].tolist()
        self._units = {(layer, n): unit for layer in chosen for n, unit in enumerate(self._of_layer(rng))}
        order = list(self._units)
        self.plan = Survey(
            seed=seed,
            units=tuple(order[i] for i in rng.permutation(len(order))),
            experts=len(chosen) * shape.experts,
            of_experts=layers * shape.experts,
        )

    def is_for(self, tokens: int, seed: int) -> bool:
        """Whether it is drawn from this seed for calls of so many tokens."""
        return (tokens, seed) == (self._tokens, self._seed)

    def meet(
        self, name: tuple[int, int], layer: int, run: Callable[[Tensor, Routing], Tensor], experts: ExpertFunctions
    ) -> Surveyed:
        """A call of decoder layer `layer` by `run`, on hidden [T, H] bf16; `experts` are what it should compute."""
        unit = self._units[name]
        numbers = np.random.default_rng((self._seed, *name))
        hidden = torch.from_numpy(
            numbers.standard_normal((self._tokens, self._shape.hidden), dtype=np.float32)
        ).bfloat16()
        output = run(hidden.clone(), Routing(ids=torch.from_numpy(unit.ids.copy()), gates=_copy(unit.gates)))
        seen = ExpertsObservation(
            layer=layer,
            hidden=hidden[unit.rows].float().numpy(),
            ids=unit.ids[unit.rows],
            gates=unit.gates[unit.rows],
            output=output.float().numpy(force=True)[unit.rows],
        )
        met = frozenset((name[0], expert) for expert in unit.experts)
        return Surveyed(seen=seen, truth=self._truth(name, seen, experts), met=met)

    def _truth(self, name: tuple[int, int], seen: ExpertsObservation, experts: ExpertFunctions) -> NDArray[np.float32]:
        """Once for all cells on the same weights, which are known by the owner of the method that gives them."""
        owner = getattr(experts, "__self__", experts)
        key = name, id(owner)
        if (known := self._truths.get(key)) is not None:
            return known[1]
        truth = truth_of(experts, seen)
        if truth.size + sum(one.size for _, one in self._truths.values()) <= _KEPT_NUMBERS:
            self._truths[key] = owner, truth  # with its owner, so that no other has its id
        return truth

    def _of_layer(self, rng: np.random.Generator) -> list[_Unit]:
        """The calls for one layer: each expert once in a token of equal gates, and tokens with steep ones."""
        flat = self._covering(rng)
        calls = [flat[first : first + self._tokens] for first in range(0, len(flat), self._tokens)]
        if self._tokens < 2 * len(flat):
            calls.append(flat[:0])
        return [self._unit(rng, ids) for ids in calls]

    def _covering(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Ids [R, k] in which each expert occurs; those that fill up the last row are others than the row has."""
        experts, top_k = self._shape.experts, self._shape.top_k
        order = rng.permutation(experts)
        spare = -experts % top_k
        return np.concatenate([order, order[:spare]]).reshape(-1, top_k).astype(np.int64)

    def _unit(self, rng: np.random.Generator, flat: NDArray[np.int64]) -> _Unit:
        """A call of the tokens `flat` [R, k] and steep ones, in an order drawn; the former are compared in any case."""
        experts, top_k, others = self._shape.experts, self._shape.top_k, self._tokens - len(flat)
        steep = rng.random((others, experts)).argsort(axis=1)[:, :top_k]
        gates = np.full((self._tokens, top_k), 1.0)
        gates[: len(flat)] *= rng.uniform(0.9, 1.1, size=(len(flat), top_k))
        gates[len(flat) :] = _STEEP
        gates[np.arange(len(flat), self._tokens), rng.integers(top_k, size=others)] = 1.0
        gates /= gates.sum(axis=1, keepdims=True)
        order = rng.permutation(self._tokens)
        rows = np.sort(np.argsort(order)[:_MOST_ROWS])  # where the first tokens went
        return _Unit(
            ids=np.concatenate([flat, steep])[order].astype(np.int64),
            gates=gates[order].astype(np.float32),
            rows=rows,
            experts=frozenset(flat.flatten().tolist()),
        )


def _copy(gates: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(gates.copy())
