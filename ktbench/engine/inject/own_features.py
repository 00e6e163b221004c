"""Features from outside: their hooks, called between a layer's router and its experts, and in place of these.

Letters: T tokens of a call, k experts of a token, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ktbench.engine.forms import ExpertMatrices
from ktbench.engine.protocol import Unsupported
from ktbench.engine.routing import Routing
from ktbench.resources import read_text
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import BY_NAME, MOST_FILE_BYTES, Feature, FeatureValue, register_file
from ktbench.spec.wire import digest

Run = Callable[[Tensor, Routing], Tensor]


@dataclass(frozen=True, slots=True)
class OwnFeature:
    """A feature from outside that is on. `hook` is one object for all layers."""

    feature: Feature
    value: FeatureValue
    hook: Any

    def has(self, method: str) -> bool:
        """Whether the hook has this method."""
        return hasattr(self.hook, method)

    def choose(self, layer: int, routing: Routing) -> Routing:
        """Other experts or gate weights for tokens, of as many experts a token; an id of -1 is no expert."""
        found = self._call("choose", layer, routing.ids, routing.gates)
        ids, gates = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
        chosen = Routing(
            ids=self._checked(ids, torch.int64, routing), gates=self._checked(gates, torch.float32, routing)
        )
        return chosen

    def defer(self, layer: int, routing: Routing) -> Tensor:
        """Bool [T, k]: which of the tokens' experts the next MoE layer adds."""
        return self._checked(self._call("defer", layer, routing.ids, routing.gates), torch.bool, routing)

    def run(self, layer: int, hidden: Tensor, routing: Routing, experts: LayerExperts) -> Tensor:
        """[T, H] in the type of `hidden` [T, H]: the gate-weighted sum over each token's experts."""
        output = self._call("run", layer, hidden, routing.ids, routing.gates, experts)
        if not isinstance(output, Tensor) or (output.shape, output.dtype) != (hidden.shape, hidden.dtype):
            raise Unsupported(f"{self._where}: run gives {_shown(output)}, must be {_shown(hidden)}")
        return output

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.hook, method)(*arguments)
        except Exception as error:  # whatever the user's code raises
            raise _failed(f"{self._where}: {method}", error) from None

    def _checked(self, found: Any, dtype: torch.dtype, routing: Routing) -> Tensor:
        if not isinstance(found, Tensor) or (found.shape, found.dtype) != (routing.ids.shape, dtype):
            expected = f"{list(routing.ids.shape)} of {dtype}"
            raise Unsupported(f"{self._where}: a hook gives {_shown(found)}, must be a tensor {expected}")
        return found

    @property
    def _where(self) -> str:
        return self.feature.where(self.value)


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The experts of one layer for a hook that runs them: called as the engine's own operator, or their weights."""

    run: Run
    weights: Callable[[int], ExpertMatrices]

    def __call__(self, hidden: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        """[T, H] bf16 of `hidden` [T, H] bf16, `ids` int64 and `gates` float32 [T, k]; an id of -1 is no expert."""
        return self.run(hidden, Routing(ids=ids.contiguous(), gates=gates.contiguous()))


def know_features(engine: EngineSpec) -> None:
    """Have the features of a cell in the table of this process, with the file that they come from.

    Raises Unsupported for a file that has changed since the request, or fails, and for features that nothing brings.
    """
    if engine.own and engine.own_file is not None and not {*engine.own} <= {*BY_NAME}:
        where = f"engine.own_file={engine.own_file}"
        try:
            if digest(read_text(engine.own_file, where, MOST_FILE_BYTES)) != engine.own_id:
                raise Unsupported(f"{where}: has changed since the request was made")
            register_file(engine.own_file)
        except ValueError as error:
            raise Unsupported(str(error)) from None
    if unknown := sorted({*engine.own} - {*BY_NAME}):
        raise Unsupported(f"engine.own.{unknown[0]}: no installed package and no engine.own_file brings this feature")


def make_hook(feature: Feature, value: FeatureValue, made: dict[str, OwnFeature]) -> OwnFeature:
    """The hook of a feature at a value, made once for all layers. Raises Unsupported with what it raises."""
    assert feature.hook is not None
    where = feature.where(value)
    if where not in made:
        try:
            made[where] = OwnFeature(feature, value, feature.hook(value))
        except Exception as error:  # whatever the user's code raises
            raise _failed(where, error) from None
    return made[where]


def _failed(where: str, error: Exception) -> Unsupported:
    return Unsupported(f"{where}: {type(error).__name__}: {error}".splitlines()[0])


def _shown(found: object) -> str:
    return f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
