"""The shared expert, put off until it is needed: by then its block has submitted the routed ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from ktbench.engine.operator import Pass
from ktbench.engine.step.later import Later
from ktbench.engine.step.watch import Where


class SharedExpert(nn.Module):
    """Stands where a block's shared experts stood: hidden [..., H], and what else a family gives them, to [..., H]."""

    def __init__(self, original: nn.Module, state: Pass, layer: int | None) -> None:
        super().__init__()
        self.original, self.state = original, state
        self._where = Where("shared", layer)

    def forward(self, hidden: Tensor, *others: Any, **named: Any) -> Tensor:
        """What the original gives; with the roles apart a tensor that is computed when it is first used."""
        if not self.state.apart:
            return self._run(hidden, *others, **named)
        run = partial(self._run, hidden, *others, **named)
        return Later(run, hidden.shape, hidden.dtype, hidden.device, waits=False)

    def _run(self, hidden: Tensor, *others: Any, **named: Any) -> Tensor:
        watch = self.state.tape.watch
        watch.enter(self._where)
        output: Tensor = self.original(hidden, *others, **named)
        watch.leave()
        return output
