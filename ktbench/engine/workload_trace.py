"""The trace of a workload: ids and routing of every step, which all cells replay so that they do the same work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ktbench.engine.decode.forward import CacheState, Forward
from ktbench.engine.experts import MoERuntimeState
from ktbench.engine.routing import PassRouting, synthetic
from ktbench.engine.workload.routing import prompt_ids, prompt_padding
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Ids [batch, tokens] and routing of each step; for decode the cache as the prompt left it.

    A step is one pass, or one for each chunk of its tokens. `padding` [batch] counts the positions before each prompt.
    """

    workload: WorkloadSpec
    ids: tuple[Tensor, ...]
    routing: tuple[tuple[PassRouting, ...], ...]
    padding: Tensor
    prompt_cache: CacheState = None

    @property
    def prompt_layers(self) -> list[Any]:
        """The layers of that cache."""
        return [] if self.prompt_cache is None else self.prompt_cache.layers


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptWriter:
    """Draws the prompts of a workload and settles the routing of every pass.

    With `routing=model` one untimed run through all steps records what the routers choose, on the backend that is set
    in `state`; deferral and skipping must be off.
    """

    workload: WorkloadSpec
    shape: MoEShape
    forward: Forward
    state: MoERuntimeState

    def write(self) -> Script:
        """The script; for decode the prompt is run whatever the routing, its cache being part of the script."""
        work, prompt, ids = self.workload, *self._ids()
        padding = torch.from_numpy(prompt_padding(work.batch, work.prompt, work.shortest)).to(self._device)
        self.forward.forget()
        self.forward.pad(padding)
        if prompt is not None:
            self._run(prompt, 0)
        cache = self.forward.remember()
        settle = self._run if work.routing == "model" else self._drawn
        routing = tuple(settle(step_ids, number) for number, step_ids in enumerate(ids, start=1))
        return Script(workload=work, ids=ids, routing=routing, padding=padding, prompt_cache=cache)

    @property
    def _device(self) -> torch.device:
        return self.forward.network.device

    def _ids(self) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Prompt (decode only) and step ids: each step has new prompts in prefill, one forced token in decode."""
        work = self.workload
        prefill = work.phase == "prefill"
        tokens = work.steps * work.prompt if prefill else work.prompt + work.steps
        ids = torch.from_numpy(prompt_ids(self.shape.vocab, work.batch, tokens, work.seed)).to(self._device)
        if prefill:
            return None, torch.split(ids, work.prompt, dim=1)
        return ids[:, : work.prompt], torch.split(ids[:, work.prompt :], 1, dim=1)

    def _run(self, ids: Tensor, number: int) -> tuple[PassRouting, ...]:
        """Routing of the passes of a step that is run, recorded where it is the routers' own."""
        state, work = self.state, self.workload
        state.begin(None if work.routing == "model" else self._drawn(ids, number))
        recorded: PassRouting = []
        state.record = recorded
        run_step(self.forward, work, ids)
        state.record = None
        layers = self.shape.moe_layers
        return tuple(recorded[first : first + layers] for first in range(0, len(recorded), layers))

    def _drawn(self, ids: Tensor, number: int) -> tuple[PassRouting, ...]:
        drawn = [one.to(self._device) for one in synthetic(self.workload, self.shape, ids.numel(), number)]
        chunk = self.workload.chunk or ids.shape[1]
        return tuple([one.chunk(ids.shape, first, chunk) for one in drawn] for first in range(0, ids.shape[1], chunk))


def run_step(forward: Forward, work: WorkloadSpec, ids: Tensor) -> Tensor:
    """The passes of a step that begins where the cache ends, or of a prefill; logits [batch, vocab]."""
    if work.phase == "prefill" and work.chunk is None:
        return forward.whole(ids)
    if work.phase == "prefill":
        forward.forget()
    return forward.chunked(ids, work.chunk)


# Each holds the cache that its prompt left.
_MOST = 4


class Scripts:
    """Written once: the prompt of a deep context takes longer than all steps after it."""

    def __init__(self) -> None:
        self._kept: dict[WorkloadSpec, Script] = {}  # last used last

    def of(self, workload: WorkloadSpec, write: Callable[[], Script]) -> Script:
        """The script of a workload, written where it is not kept; the one used longest ago makes room."""
        script = self._kept.pop(workload, None) or write()
        self._kept[workload] = script
        if len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]
        return script
