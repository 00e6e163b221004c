"""What nobody sees of llama.cpp, however it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

from ktbench.engine.protocol import Observation, Unsupported


class Unseen:
    """The part of `System` that is about experts, features and roles: it shows none, and has none of ours."""

    name: ClassVar[str]

    def observe(self) -> tuple[Observation, ...]:
        """None: what its experts compute is not shown."""
        return ()

    def reference(self, observation: Observation) -> NoReturn:
        """Raises ValueError: nothing was observed."""
        raise ValueError(f"{self.name}: layer {observation.layer} was not observed")

    def counters(self) -> Mapping[str, int]:
        """None."""
        return {}

    def timeline(self) -> NoReturn:
        """Raises Unsupported."""
        raise Unsupported(f"{self.name} does not say when its parts of a step ran")

    def chosen(self) -> Mapping[str, int]:
        """None: it has no feature of ours."""
        return {}
