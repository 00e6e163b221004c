"""Ways to do the steps of a script: pass by pass through the modelling code, or replayed from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

import torch
from torch import Tensor

from ktbench.engine.forward import Forward
from ktbench.engine.operator import Pass
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.script import Script, run_step
from ktbench.engine.step.decoding import LeanDecoding
from ktbench.engine.step.watch import Segment, joined


class Steps(Protocol):
    """Does the steps of a script, which are counted from 0; logits are [batch, vocab]."""

    def start(self) -> None:
        """Back to the state before step 0."""

    def step(self, number: int) -> Tensor:
        """The next step."""

    def again(self, number: int) -> Tensor:
        """The last step once more, through the modelling code."""

    def watched(self, number: int) -> list[Segment]:
        """The last step once more, taking down what the device role does when."""


class PassSteps:
    """Every step runs the modelling code."""

    def __init__(self, forward: Forward, state: Pass, script: Script) -> None:
        self._forward, self._state, self._script = forward, state, script

    def start(self) -> None:
        """See `Steps`."""
        script = self._script
        self._forward.pad(script.padding)
        self._forward.restore(script.prompt_cache, script.workload.prompt)

    def step(self, number: int) -> Tensor:
        """See `Steps`. It is timed: no state is copied here for `again`."""
        return self._run(number)

    def again(self, number: int) -> Tensor:
        """See `Steps`. Where the cache cannot be cropped, the steps before it are repeated from the prompt."""
        if self._script.workload.phase == "decode" and not self._forward.crop(self._script.ids[number].shape[1]):
            self.start()
            for earlier in range(number):
                self._run(earlier)
        return self._run(number)

    def watched(self, number: int) -> list[Segment]:
        """See `Steps`."""
        with self._state.tape.watch.on(self._forward.network) as segments:
            self.again(number)
        return joined(segments)

    def _run(self, number: int) -> Tensor:
        script = self._script
        self._state.begin(script.routing[number])
        return run_step(self._forward, script.workload, script.ids[number])


class LeanSteps:
    """Decode steps are replayed; the routing of each is put where the recording reads it."""

    def __init__(self, decoding: LeanDecoding, state: Pass, script: Script) -> None:
        self._decoding, self._state, self._script = decoding, state, script
        self._all = _stacked([passes[0] for passes in script.routing])
        self._now = tuple(torch.empty_like(every[0]) for every in self._all)
        self._set(0)
        decoding.record(script.ids[0])

    def start(self) -> None:
        """See `Steps`."""
        self._decoding.start()

    def step(self, number: int) -> Tensor:
        """See `Steps`."""
        self._set(number)
        return self._decoding.step(self._script.ids[number])

    def again(self, number: int) -> Tensor:
        """See `Steps`."""
        self._set(number)
        return self._decoding.again(self._script.ids[number])

    def watched(self, number: int) -> list[Segment]:
        """See `Steps`."""
        self._set(number)
        return self._decoding.watched(self._script.ids[number])

    def _set(self, number: int) -> None:
        for now, every in zip(self._now, self._all, strict=True):
            now.copy_(every[number])
        ids, gates = self._now
        one_pass = [Routing(ids=ids[layer], gates=gates[layer]) for layer in range(len(ids))]
        self._state.begin(repeat(one_pass))  # a recording may run it several times


def _stacked(steps: Sequence[PassRouting]) -> tuple[Tensor, Tensor]:
    """Expert ids and gate weights, both [steps, layers, tokens, k]."""
    ids = torch.stack([torch.stack([layer.ids for layer in step]) for step in steps])
    gates = torch.stack([torch.stack([layer.gates for layer in step]) for step in steps])
    return ids, gates
