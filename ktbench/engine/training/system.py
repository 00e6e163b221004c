"""The system that a training workload measures: steps of forward, backward and AdamW on LoRA."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ktbench.engine.components import use_threads
from ktbench.engine.forms import ExpertStore
from ktbench.engine.fused import FusedHost
from ktbench.engine.protocol import Diverged, ExpertsObservation, Unsupported, configured, require
from ktbench.engine.routing import PassRouting, Routing
from ktbench.engine.training.completions import Sequences, Task, completes, drawn_batches, random_batches
from ktbench.engine.training.lora_state import LoraSnapshot, LoraState
from ktbench.engine.work import ExpertsWork, training_work
from ktbench.spec.features import FeatureValue
from ktbench.spec.record import HeldOut, Learning, StepParts, Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.step.work import DenseWork
from ktbench.spec.timeline import Timeline
from ktbench.spec.weights import dense_bytes

# Tokens whose gradients are compared with float32.
_OBSERVED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedNetwork:
    """A network with PEFT's adapters, all but its experts on `device`, and what each MoE layer has, in order.

    That is the experts without adapters, what has the switch `recompute`, their weights as they are stored, and the
    number of the decoder layer.
    """

    network: nn.Module
    device: torch.device
    experts: Sequence[nn.Module]
    switches: Sequence[nn.Module]
    stores: Sequence[ExpertStore]
    layers: Sequence[int]
    dense_params: int
    host: FusedHost | None
    cpus: tuple[int, ...]


class TrainingSystem:
    """Implements `ktbench.engine.protocol.System` and `Trains`; made by `ktbench.engine.training.load`."""

    def __init__(self, model: ModelSpec, held: TrainedNetwork) -> None:
        self.model, self._held = model, held
        self._state = LoraState(held.network)
        self._first: LoraSnapshot | None = None
        self._before_last: LoraSnapshot | None = None
        self._spec: RunSpec | None = None
        self._tasks: dict[tuple[str, int], Task] = {}
        self._batches: list[Sequences] = []
        self._untrained: HeldOut | None = None
        self._marks: list[tuple[float, float, float]] = []
        self._losses: list[float] = []
        self._logits = torch.empty(0)
        self._work: dict[WorkloadSpec, Work] = {}

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for a model or a thread count that is not there."""
        require(spec, self.model)
        held, work = self._held, spec.workload
        # Experts and PyTorch take turns on one team: OpenMP ends and starts threads whenever its size changes.
        use_threads(held.cpus, replace(spec.engine, device="cpu"), held.host, None)
        if held.host is not None:
            held.host.require(spec)
            held.host.choose(spec.engine)
        for switch in held.switches:
            switch.recompute = bool(work.recompute)  # type: ignore[assignment]
        self._spec, self._first = spec, self._state.drawn(work.seed)
        self._batches = self._drawn(work)
        self.start()
        if work not in self._work:
            self._work[work] = self._work_of(spec)
        self._untrained = self._held_out()

    def _drawn(self, work: WorkloadSpec) -> list[Sequences]:
        """The batches of all steps, on the device. Raises Unsupported."""
        if (task := self._task(work)) is not None:
            batches = drawn_batches(task.training, work.steps, work.batch, work.seed)
        else:
            batches = random_batches(self.model.shape.vocab, (work.steps, work.batch, work.prompt), work.seed)
        return [batch.to(self._held.device) for batch in batches]

    def _task(self, work: WorkloadSpec) -> Task | None:
        """What is learned, None of random tokens; read once."""
        if work.examples is None or self.model.path is None:
            return None
        key = work.examples, work.prompt
        if key not in self._tasks:
            self._tasks[key] = Task.read(work.examples, self.model.path, work.prompt)
        return self._tasks[key]

    def _held_out(self) -> HeldOut | None:
        """How well the network as it is completes held-out examples. Raises Diverged."""
        work, held = self._configured.workload, self._held
        task = self._task(work)
        return None if task is None else completes(held.network, task.held_out, work.batch, held.device)

    def start(self) -> None:
        """See `System`: adapters and the optimiser's moments are as before the first step."""
        self._state.restore(configured(self._first))
        self._before_last, self._marks, self._losses = None, [], []

    def step(self) -> None:
        """See `System`. Raises IndexError past the last step of the workload."""
        batch = self._batches[len(self._losses)]
        self._keep_last()
        began_s = perf_counter()
        output: Any = self._held.network(input_ids=batch.ids, labels=batch.labels, use_cache=False)
        loss = float(output.loss.detach())
        if not math.isfinite(loss):
            raise Diverged(f"the loss of training step {len(self._losses) + 1} is {loss}")
        forward_s = perf_counter()
        output.loss.backward()
        self._wait()
        backward_s = perf_counter()
        self._state.optimiser.step()
        self._state.optimiser.zero_grad()
        self._wait()
        self._logits = batch.at_prompt_ends(output.logits).detach()
        self._losses.append(loss)
        self._marks.append((forward_s - began_s, backward_s - forward_s, perf_counter() - backward_s))

    def _keep_last(self) -> None:
        """Before the last of many steps what it begins with is kept, so that it can be repeated alone."""
        work = self._configured.workload
        if work.examples is not None and len(self._losses) == work.steps - 1:
            self._before_last = self._state.kept()

    def _wait(self) -> None:
        """Until the device has done its part of what is timed."""
        if self._held.device.type == "cuda":
            torch.cuda.synchronize()

    def parts(self) -> StepParts:
        forward_s, backward_s, optimiser_s = (sum(part) for part in zip(*self._marks, strict=True))
        return StepParts(
            forward_s=forward_s, backward_s=backward_s, optimiser_s=optimiser_s, losses=tuple(self._losses)
        )

    def learning(self) -> Learning | None:
        """See `Trains`. Raises Diverged."""
        after = self._held_out()
        return None if self._untrained is None or after is None else Learning(before=self._untrained, after=after)

    def logits(self) -> NDArray[np.float32]:
        """See `System`: before the optimiser of the last step; of examples those of the first completed token."""
        return self._logits.float().cpu().numpy()

    def observe(self, _step: int | None = None, _seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        """See `System`: the last step once more, then output and gradient of one layer on some of its very inputs."""
        self._rewind()
        seen = _Calls(self._held.experts)
        with seen:
            self.step()
        number = self._configured.workload.seed % len(self._held.experts)
        hidden, ids, gates = seen.calls[number]
        some = torch.linspace(0, len(hidden) - 1, min(_OBSERVED, len(hidden))).long()
        hidden, ids, gates = hidden[some], ids[some], gates[some]
        rows = hidden.clone().requires_grad_()
        output: Tensor = self._held.experts[number](rows, ids, gates)
        (back,) = torch.autograd.grad(output, rows, _gradient_of(hidden).to(output.dtype))
        return (
            ExpertsObservation(
                layer=self._held.layers[number],
                hidden=hidden.float().numpy(),
                ids=ids.numpy(),
                gates=gates.float().numpy(),
                output=_beside(output, back),
            ),
        )

    def _rewind(self) -> None:
        """To before the last step: what was kept then, else the earlier steps once more."""
        done, kept = len(self._losses), self._before_last
        if kept is not None:
            self._state.restore(kept)
            self._losses, self._marks = self._losses[:-1], self._marks[:-1]
            return
        self.start()
        for _ in range(done - 1):
            self.step()

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """See `System`: by PyTorch alone, which also differentiates it."""
        store = self._held.stores[self._held.layers.index(observation.layer)]
        hidden = torch.from_numpy(observation.hidden).requires_grad_()
        ids, gates = torch.from_numpy(observation.ids), torch.from_numpy(observation.gates)
        output = torch.zeros_like(hidden)
        for expert in sorted(set(ids.flatten().tolist())):
            token, place = (ids == expert).nonzero(as_tuple=True)
            output = output.index_add(0, token, gates[token, place, None] * store(expert)(hidden[token]))
        (back,) = torch.autograd.grad(output, hidden, _gradient_of(hidden.detach()))
        return _beside(output, back)

    def counters(self) -> Mapping[str, int]:
        return Counter[str]() if self._held.host is None else self._held.host.counters()

    def timeline(self) -> Timeline:
        """See `System`. Raises Unsupported."""
        raise Unsupported("workload.phase=train has one role: there is no second one to draw")

    def chosen(self) -> Mapping[str, FeatureValue]:
        return {}

    def notes(self) -> tuple[str, ...]:
        trained = f"trains {sum(factor.numel() for factor in self._state.factors):,} numbers of LoRA"
        if self._configured.workload.examples is not None:
            return (trained,)  # losses are too many, and shown as curves
        losses = ", ".join(f"{loss:.4g}" for loss in self._losses)
        return (f"{trained}; losses {losses} (nats a token)",)

    def work(self) -> Work:
        return self._work[self._configured.workload]

    def close(self) -> None:
        self._batches, self._tasks = [], {}
        del self._held, self._state, self._first, self._before_last

    def _work_of(self, spec: RunSpec) -> Work:
        """By the routing of the first batch; of the experts alone where a device does the rest."""
        shape, held = self.model.shape, self._held
        with _Calls(held.experts) as seen, torch.no_grad():
            held.network(input_ids=self._batches[0].ids, use_cache=False)
        routing = PassRouting.of([Routing(ids=ids, gates=gates.float()) for _, ids, gates in seen.calls])
        precisions = (("bf16", "bf16"),) if held.host is None else held.host.precisions
        tokens = spec.workload.tokens_per_step
        dense = DenseWork(params=held.dense_params, nbytes=dense_bytes(shape, "bf16"), batch=tokens)
        in_experts = self._state.in_experts
        others = sum(factor.numel() for factor in self._state.factors) - in_experts
        experts, of_one = ExpertsWork(shape=shape, precisions=precisions), in_experts // shape.experts
        if held.device.type == "cuda":
            return training_work(None, experts, routing, (0, of_one))
        return training_work(dense, experts, routing, (others, of_one))

    @property
    def _configured(self) -> RunSpec:
        return configured(self._spec)


class _Calls(ExitStack):
    """Inside, the inputs of every call of experts: hidden states [T, H], ids and gate weights [T, k]."""

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []
        self._experts = experts

    def __enter__(self) -> _Calls:
        for number, module in enumerate(self._experts):
            self.callback(module.register_forward_pre_hook(self._noting(number)).remove)
        return self

    def _noting(self, number: int) -> Any:
        def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if number == len(self.calls):  # not when activations are formed again
                hidden, ids, gates = (one.detach().to("cpu", copy=True) for one in inputs)
                self.calls.append((hidden, ids, gates))

        return note


def _gradient_of(hidden: Tensor) -> Tensor:
    """Seeded gradients of an output, as long as the hidden states: output and gradient then weigh alike in an error."""
    drawn = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    return (drawn * hidden.float().square().mean().sqrt()).bfloat16().float()


def _beside(output: Tensor, back: Tensor) -> NDArray[np.float32]:
    """[T, 2 · hidden]."""
    found: NDArray[np.float32] = torch.cat([output.detach(), back.detach()], dim=1).float().numpy()
    return found
