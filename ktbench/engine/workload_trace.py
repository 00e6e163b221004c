"""The trace of a workload: ids and routing of every step, which all cells replay so that they do the same work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.decode.inputs import DecodeState
from ktbench.engine.decode.step import Forward, PassRunner
from ktbench.engine.routing import PassRouting, Routing, synthetic
from ktbench.engine.workload.routing import prompt_ids, prompt_padding
from ktbench.spec.run_spec import WorkloadSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.step.memory import KEPT_WORKLOADS

if TYPE_CHECKING:
    from ktbench.engine.backend import MoERuntimeState


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadTrace:
    """Ids [batch, tokens] and routing of each step, and the state before step 0: for decode the cache of the prompt.

    A step is one pass, or one for each chunk of its tokens. `selected` are the experts of `routing` in memory of the
    host, int64 [MoE layers, T, k]: who counts them in a step need not wait for a device.
    """

    workload: WorkloadSpec
    ids: tuple[Tensor, ...]
    routing: tuple[tuple[PassRouting, ...], ...]
    selected: tuple[tuple[NDArray[np.int64], ...], ...]
    start: DecodeState


class TraceCache:
    """The traces of the workloads that were used last: a long prompt takes longer than all steps after it."""

    def __init__(self) -> None:
        self._kept: dict[WorkloadSpec, WorkloadTrace] = {}  # last used last

    def of(self, workload: WorkloadSpec, write: Callable[[], WorkloadTrace]) -> WorkloadTrace:
        """The trace of a workload, written where it is not kept; the one used longest ago makes room."""
        trace = self._kept.pop(workload, None) or write()
        self._kept[workload] = trace
        if len(self._kept) > KEPT_WORKLOADS:
            del self._kept[next(iter(self._kept))]
        return trace


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceWriter:
    """Draws the prompts of a workload and determines the routing of every pass.

    With `routing=model` one untimed run through all steps records what the routers select, on the backend that is set
    in `state`; deferral and skipping must be off.
    """

    workload: WorkloadSpec
    shape: MoEShape
    forward: Forward
    state: MoERuntimeState

    def write(self) -> WorkloadTrace:
        """The trace; for decode the prompt is run whatever the routing, its cache being part of the trace."""
        work, prompt, ids = self.workload, *self._ids()
        self.forward.reset()
        self.forward.set_padding(
            torch.from_numpy(prompt_padding(work.batch, work.prompt, work.shortest)).to(self._device)
        )
        if prompt is not None:
            self._run(prompt, 0)
        start = self.forward.snapshot()
        route = self._run if work.routing == "model" else self._drawn
        routing = tuple(route(step_ids, number) for number, step_ids in enumerate(ids, start=1))
        self.forward.reset()  # of the steps; the memory is for others
        selected = tuple(tuple(run_pass.ids.numpy(force=True) for run_pass in passes) for passes in routing)
        return WorkloadTrace(workload=work, ids=ids, routing=routing, selected=selected, start=start)

    @property
    def _device(self) -> torch.device:
        return self.forward.network.device

    def _ids(self) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Prompt (decode only) and step ids: each step has new prompts in prefill, one forced token in decode."""
        work, width = self.workload, _step_width(self.workload)
        tokens = work.steps * width + (0 if work.phase == "prefill" else work.prompt)
        ids = torch.from_numpy(prompt_ids(self.shape.vocab, work.batch, tokens, work.seed)).to(self._device)
        if work.phase == "prefill":
            return None, torch.split(ids, width, dim=1)
        return ids[:, : work.prompt], torch.split(ids[:, work.prompt :], width, dim=1)

    def _run(self, ids: Tensor, number: int) -> tuple[PassRouting, ...]:
        """Routing of the passes of a step that is run, recorded where it is the routers' own."""
        recorded: list[Routing] = []
        self.state.record = recorded
        runner = pass_runner(self.workload, self.forward, self.state)
        runner.step(ids, None if self.workload.routing == "model" else self._drawn(ids, number))
        self.state.record = None
        layers = self.shape.moe_layers
        return tuple(PassRouting.of(recorded[first : first + layers]) for first in range(0, len(recorded), layers))

    def _drawn(self, ids: Tensor, number: int) -> tuple[PassRouting, ...]:
        drawn = synthetic(self.workload, self.shape, ids.numel(), number).to(self._device)
        chunk = self.workload.chunk or ids.shape[1]
        return tuple(drawn.chunk(ids.shape, first, chunk) for first in range(0, ids.shape[1], chunk))


def step_ids(workload: WorkloadSpec, vocab: int, number: int) -> tuple[Tensor, ...]:
    """Token ids [B, T] of every step in round `number`, drawn by the workload's seed and this number."""
    width = _step_width(workload)
    seed = workload.seed, number + 1  # a last 0 would change nothing: round 0 would have the workload's own
    ids = prompt_ids(vocab, workload.batch, workload.steps * width, seed)
    return torch.split(torch.from_numpy(ids), width, dim=1)


def _step_width(workload: WorkloadSpec) -> int:
    """Tokens that a step puts through in each sequence."""
    return workload.prompt if workload.phase == "prefill" else 1


def pass_runner(workload: WorkloadSpec, forward: Forward, state: MoERuntimeState) -> PassRunner:
    """Runs the steps of a workload through the modelling code."""
    return PassRunner(forward, state, chunk=workload.chunk, prefill=workload.phase == "prefill")
