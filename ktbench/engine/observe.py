"""What the correctness check compares: sampled, untimed experts calls, and their output in float32 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.protocol import ExpertsObservation, NotComputed, Survey, Surveyed
from ktbench.engine.routing import Routing
from ktbench.spec.shape import MoEShape

# The reference widens every expert that these tokens went to: more of them would cost more than the timed step.
_MOST_TOKENS = 12


class Observer:
    """Keeps a seeded sample of tokens of every call; the same tokens in all layers of a pass.

    With `most_experts`, which must be as many as a token has at least, the tokens share so many experts among them.
    """

    def __init__(self, *seed: int, most_experts: int | None = None) -> None:
        self.seed, self.most_experts = seed, most_experts
        self.seen: list[ExpertsObservation] = []

    def __call__(self, layer: int, hidden: Tensor, routing: Routing, output: Tensor) -> None:
        """Take down one call of `layer`: `hidden` and `output` [T, H]."""
        rows = self._sample(routing)
        observation = ExpertsObservation(
            layer=layer,
            hidden=hidden[rows].float().numpy(force=True),
            ids=routing.ids[rows].numpy(force=True),
            gates=routing.gates[rows].numpy(force=True),
            output=output[rows].float().numpy(force=True),
        )
        self.seen.append(observation)

    def _sample(self, routing: Routing) -> Tensor:
        tokens = len(routing.ids)
        rows = np.random.default_rng((*self.seed, tokens)).permutation(tokens)
        if self.most_experts is not None:
            rows = rows[_sharing(routing.ids.numpy(force=True)[rows], self.most_experts)]
        return torch.from_numpy(np.sort(rows[:_MOST_TOKENS]))


def _sharing(ids: NDArray[np.int64], most_experts: int) -> list[int]:
    """Rows of `ids` [T, k], from the first on, that together have at most so many experts."""
    rows: list[int] = []
    shared: set[int] = set()
    for row, chosen in enumerate(ids.tolist()):
        joined = shared.union(chosen)
        if len(joined) <= most_experts:
            rows.append(row)
            shared = joined
        if len(rows) == _MOST_TOKENS:
            break
    return rows


def float32_output(experts: ExpertFunctions, hidden: Tensor, routing: Routing) -> Tensor:
    """[T, H] float32 of `hidden` [T, H] float32: the sum over each token's experts of gate weight times output.

    Each expert is run once, for its own tokens alone. An id of -1 selects no expert.
    """
    total = torch.zeros_like(hidden)
    for i in sorted(set(routing.ids.flatten().tolist()) - {-1}):
        token, column = (routing.ids == i).nonzero(as_tuple=True)
        total.index_add_(0, token, experts(i)(hidden[token]) * routing.gates[token, column, None])
    return total


def truth_of(experts: ExpertFunctions, seen: ExpertsObservation) -> NDArray[np.float32]:
    """The output [T, H] of an observed call in float32 arithmetic."""
    routing = Routing(ids=torch.from_numpy(seen.ids), gates=torch.from_numpy(seen.gates))
    return float32_output(experts, torch.from_numpy(seen.hidden), routing).numpy()


class KeptOutputs:
    """Copies of the outputs of single steps, in memory of the host that is reused from trial to trial."""

    def __init__(self) -> None:
        self._copies: dict[int, Tensor] = {}
        self._free: list[Tensor] = []

    def take(self, step: int, output: Tensor) -> None:
        """Copy the output of a step, which is then there. Raises NotComputed for what may still be computed."""
        if type(output) is not Tensor:
            raise NotComputed(f"a step gives a {type(output).__name__} in place of a torch.Tensor")
        memory = self._free.pop() if self._free else torch.empty(0)
        if (memory.shape, memory.dtype) != (output.shape, output.dtype):
            memory = torch.empty(output.shape, dtype=output.dtype)
        self._copies[step] = memory.copy_(output)

    def of(self, step: int) -> Tensor | None:
        """The copy of a step; None where none was taken."""
        return self._copies.get(step)

    def clear(self) -> None:
        """Forget all; their memory is used again."""
        self._free += self._copies.values()
        self._copies = {}


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
        output = run(hidden.clone(), Routing(ids=torch.from_numpy(unit.ids.copy()), gates=_copied(unit.gates)))
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


def _copied(gates: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(gates.copy())
