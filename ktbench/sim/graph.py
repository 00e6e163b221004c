"""The task graph of one step: one builder for machines with and without a GPU, over an interface of costs.

A training step is a pass forward, one back through the same layers, and the optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ktbench.sim.executor import Graph
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.timeline import Resource

SharedOrder = Literal["before", "beside", "after"]
# Tasks that end the forward pass of a training step, and with which its optimiser begins.
LOSS, OPTIMISER = "loss", "optimiser"
# Of the backward pass over the forward pass: attention has five products of the size of scores where it had two, as it
# forms the scores again; norms and the like read a gradient beside what they had read, and write one.
_SCORES_BACK, _MOVED_BACK = 2.5, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Tokens that go through the model together: `tokens` of each of `batch` sequences, after `context` others.

    Or gradients of as many, `back` through frozen weights: products with these are as many operations as forward.
    """

    tokens: int
    batch: int
    context: int
    back: bool = False

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.tokens

    @property
    def scores(self) -> float:
        """Products of attention scores, in units of those of a forward pass."""
        return _SCORES_BACK if self.back else 1.0

    @property
    def moved(self) -> float:
        """Bytes that norms, rotations and additions move, in the same units."""
        return _MOVED_BACK if self.back else 1.0

    @property
    def adapted(self) -> int:
        """Products with LoRA's factors: back there are those of their own gradients beside those of inputs."""
        return 2 if self.back else 1


def passes_of(spec: RunSpec) -> tuple[Pass, ...]:
    """The forward passes of a step: one, or one for each chunk of a prompt. A prefill begins without context."""
    work = spec.workload
    if work.phase == "decode":
        return (Pass(tokens=1, batch=work.batch, context=work.prompt),)
    chunk = work.chunk or work.prompt
    begins = range(0, work.prompt, chunk)
    return tuple(Pass(tokens=min(chunk, work.prompt - at), batch=work.batch, context=at) for at in begins)


def machine_of(spec: RunSpec) -> MachineSpec:
    """The machine of a cell. Raises ValueError where it names none."""
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    return spec.machine


def head_rows(spec: RunSpec, work: Pass) -> int:
    """Positions that the output head is for: the last of each sequence, in training all."""
    return work.rows if spec.workload.phase == "train" else work.batch


def lowest_trained(spec: RunSpec) -> int:
    """The first layer that has LoRA: nothing below it needs a gradient."""
    return 0 if spec.lora.attention else spec.model.shape.dense_layers


def wants_inputs(spec: RunSpec, layer: int) -> bool:
    """Whether the backward pass goes on below the experts of a layer."""
    return bool(spec.lora.attention) or layer > lowest_trained(spec)


def has_effect(spec: RunSpec) -> bool:
    """Whether deferral and skipping have an effect: in decode, and in prefill with `defer_prefill`."""
    phase = spec.workload.phase
    return phase == "decode" or (phase == "prefill" and spec.engine.defer_prefill)


def kept_experts(spec: RunSpec) -> int:
    """Experts that a token runs: all that it selects but those it skips."""
    return spec.model.shape.top_k - (spec.engine.skipping if has_effect(spec) else 0)


def deferred_experts(spec: RunSpec) -> int:
    """Experts that a token defers to the next layer. Raises ValueError where deferral is not a number yet."""
    if spec.engine.deferral == "auto":
        raise ValueError("engine.deferral=auto: must be a number in a task graph")
    return spec.engine.deferral if has_effect(spec) else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTask:
    """Seconds of a part of a layer on the device, and of launching its kernels; `kind` is that of a `Span`."""

    name: str
    kind: str
    seconds: float
    launch_s: float = 0.0


class CostModel(Protocol):
    """Seconds of the parts of a step on a machine."""

    @property
    def spec(self) -> RunSpec:
        """The cell; its deferral is a number."""

    @property
    def host(self) -> Resource:
        """The resource that runs the routed experts."""

    def shared_order(self, work: Pass) -> SharedOrder:
        """When a layer's shared expert runs: before the routed ones are submitted, beside them, or after they ended.

        With "after" each layer also waits for the experts that it defers.
        """

    @property
    def step_launch_s(self) -> float:
        """Launching a step before its first layer; 0 for no such task."""

    def attention(self, work: Pass) -> DeviceTask:
        """Attention, norms and router of a layer."""

    def dense(self, work: Pass) -> DeviceTask:
        """The feed-forward part of a layer without experts."""

    def shared(self, work: Pass) -> DeviceTask | None:
        """The shared expert of a layer; None where there is none."""

    def head(self, work: Pass) -> DeviceTask:
        """The output head, for the last token of each sequence; in training for all."""

    def loss(self, work: Pass) -> DeviceTask:
        """The loss of all tokens of a training step, from their logits."""

    def optimiser_s(self, role: Resource) -> float:
        """AdamW on the LoRA that a role (`host` or `device`) holds."""

    def all_reduce(self, work: Pass) -> DeviceTask | None:
        """Adding up what each of several GPUs has computed a part of; None where there is nothing to add up."""

    def device_experts(self, work: Pass, layer: int) -> DeviceTask | None:
        """The routed experts of a layer that are placed on the device; None where there are none."""

    def routed_s(self, work: Pass, layer: int, first: int, last: int) -> float:
        """One call of the host's experts of a layer, for the selections `first` to `last` of each token."""

    def hand_over_s(self, work: Pass, layer: int) -> float | None:
        """Copies to the host and back for a layer; None where both roles share memory."""

    def layer_alone_s(self) -> float:
        """One call of the experts in the layer phase."""


def build_graph(cost: CostModel) -> Graph:
    """The tasks of one step: layer by layer, then the output head; in the layer phase one call of the experts."""
    builder = _Builder(cost)
    if cost.spec.workload.phase == "layer":
        builder.graph.add("experts", "experts", cost.host, cost.layer_alone_s())
        return builder.graph
    if cost.step_launch_s:
        builder.last = builder.graph.add("step", "other", "launch", cost.step_launch_s)
    for work in passes_of(cost.spec):
        builder.add_pass(work)
    if cost.spec.workload.phase == "train":
        builder.add_training(work)
    return builder.graph


class _Builder:
    """`last` is the task that the next layer waits for, `_due` the deferred call that the next sum waits for."""

    def __init__(self, cost: CostModel) -> None:
        self.graph = Graph()
        self.last: int | None = None
        self._due: int | None = None
        self._suffix = ""  # of the names of a backward pass
        self._cost, self._shape = cost, cost.spec.model.shape
        self._kept, self._deferred = kept_experts(cost.spec), deferred_experts(cost.spec)

    def add_pass(self, work: Pass) -> None:
        """All layers, then the head; the last layer defers nothing (KTransformers, section 4.1)."""
        cost, shape = self._cost, self._shape
        attention, dense, shared = cost.attention(work), cost.dense(work), cost.shared(work)
        for layer in range(shape.layers):
            attended = self._reduced(work, layer, self._device(attention, layer, self.last))
            if layer < shape.dense_layers:
                last = self._device(dense, layer, attended)
            else:
                last = self._moe(work, layer, attended, shared)
            self.last = self._reduced(work, layer, last)
        self.last = self._device(cost.head(work), None, self.last)

    def add_training(self, forth: Pass) -> None:
        """What a training step has beyond its forward pass: the loss, the same layers backward, and the optimiser."""
        cost, back = self._cost, replace(forth, back=True)
        self.last = self._device(cost.loss(forth), None, self.last)
        self._suffix = " back"
        self.last = self._device(cost.loss(back), None, self.last)
        self.last = self._device(cost.head(back), None, self.last)
        attention, dense, shared = cost.attention(back), cost.dense(back), cost.shared(back)
        for layer in reversed(range(lowest_trained(cost.spec), self._shape.layers)):
            goes_on = wants_inputs(cost.spec, layer)
            if layer < self._shape.dense_layers:
                self.last = self._device(dense, layer, self.last)
            else:
                self.last = self._moe(back, layer, self.last, shared if goes_on else None)
            if goes_on:
                self.last = self._device(attention, layer, self.last)
        for role in ("device", "host"):
            self.last = self.graph.add(OPTIMISER, "other", role, cost.optimiser_s(role), self.last)

    def _moe(self, work: Pass, layer: int, attended: int | None, shared: DeviceTask | None) -> int:
        """The experts' calls between the copies, the shared expert at its place, and the sum."""
        order, hand_over_s = self._cost.shared_order(work), self._cost.hand_over_s(work, layer)
        ready = self._device(shared, layer, attended) if shared and order == "before" else attended
        sent = self._copy("submit", layer, hand_over_s, ready)
        routed = self._routed(work, layer, sent)
        at_device = self._cost.device_experts(work, layer)
        parts = [self._device(at_device, layer, *sent)] if at_device else []
        if shared and order == "beside":
            parts.append(self._device(shared, layer, attended))
        returned = self._copy("return", layer, hand_over_s, *(routed if order == "after" else routed[:1]))
        if shared and order == "after":
            parts.append(self._device(shared, layer, *returned))
        due, self._due = self._due, routed[1] if len(routed) > 1 else None
        return self.graph.add(f"sum {layer}{self._suffix}", "other", "device", 0.0, *returned, *parts, due, layer=layer)

    def _routed(self, work: Pass, layer: int, after: tuple[int | None, ...]) -> list[int]:
        """The call whose result this layer adds, and where experts are deferred the one that the next layer adds."""
        late = 0 if layer == self._shape.layers - 1 else self._deferred
        calls = [("experts", 0, self._kept - late)] + ([("deferred", self._kept - late, self._kept)] if late else [])
        return [
            self.graph.add(
                f"{kind} {layer}{self._suffix}",
                kind,
                self._cost.host,
                self._cost.routed_s(work, layer, *span),
                *after,
                layer=layer,
            )
            for kind, *span in calls
        ]

    def _copy(self, name: str, layer: int, hand_over_s: float | None, *after: int | None) -> tuple[int | None, ...]:
        """Half of the hand-over; what was to be waited for where there are no copies."""
        if hand_over_s is None:
            return after
        return (self.graph.add(f"{name} {layer}{self._suffix}", "copy", "link", hand_over_s / 2, *after, layer=layer),)

    def _reduced(self, work: Pass, layer: int, last: int) -> int:
        """Tensor parallelism adds up the GPUs' parts after attention and at a layer's end (Shoeybi et al. 2019)."""
        reduce = self._cost.all_reduce(work)
        return last if reduce is None else self._device(reduce, layer, last)

    def _device(self, task: DeviceTask, layer: int | None, *after: int | None) -> int:
        name = (task.name if layer is None else f"{task.name} {layer}") + self._suffix
        if task.launch_s:
            after = (self.graph.add(f"launch {name}", "launch", "launch", task.launch_s, *after, layer=layer),)
        return self.graph.add(name, task.kind, "device", task.seconds, *after, layer=layer)
