"""The workloads that are simulated, a row each: passes of a step, its tasks over an interface of costs, its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ktbench.sim.graph import Execution, Graph
from ktbench.spec.engine import EngineSpec
from ktbench.spec.features import Phase
from ktbench.spec.limits import Reason
from ktbench.spec.machine import MachineSpec
from ktbench.spec.record import StepParts
from ktbench.spec.run_spec import RunSpec, WorkloadSpec
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


def machine_of(spec: RunSpec) -> MachineSpec:
    """The machine of a cell. Raises ValueError where it names none."""
    if spec.machine is None:
        raise ValueError("machine: names no machine to simulate on")
    return spec.machine


def head_rows(spec: RunSpec, work: Pass) -> int:
    """Positions that the output head is for: the last of each sequence, or all."""
    return work.rows if workload_of(spec).all_logits else work.batch


def lowest_trained(spec: RunSpec) -> int:
    """The first layer that has LoRA: nothing below it needs a gradient."""
    return 0 if spec.lora.attention else spec.model.shape.dense_layers


def wants_inputs(spec: RunSpec, layer: int) -> bool:
    """Whether the backward pass goes on below the experts of a layer."""
    return bool(spec.lora.attention) or layer > lowest_trained(spec)


def has_effect(spec: RunSpec) -> bool:
    """Whether deferral and skipping have an effect."""
    return workload_of(spec).defers(spec.engine)


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
    """Seconds of the parts of a step on a machine; parts that a machine does not have take none."""

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
        return 0.0

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
        return None

    def device_experts(self, work: Pass, layer: int) -> DeviceTask | None:
        """The routed experts of a layer that are placed on the device; None where there are none."""
        return None

    def routed_s(self, work: Pass, layer: int, first: int, last: int) -> float:
        """One call of the host's experts of a layer, for the selections `first` to `last` of each token."""

    def hand_over_s(self, work: Pass, layer: int) -> float | None:
        """Copies to the host and back for a layer; None where both roles share memory."""
        return None

    def layer_alone_s(self) -> float:
        """One call of the experts in the layer phase."""


class StepBuilder:
    """Adds the tasks of a step: `last` is the task that the next layer waits for.

    `_due` is the deferred call that the next sum waits for, `_suffix` ends the names of a backward pass.
    """

    def __init__(self, cost: CostModel) -> None:
        self.graph = Graph()
        self.last: int | None = None
        self._due: int | None = None
        self._suffix = ""
        self.cost, self._shape = cost, cost.spec.model.shape
        self._kept, self._deferred = kept_experts(cost.spec), deferred_experts(cost.spec)

    def add_pass(self, work: Pass) -> None:
        """All layers, then the head; the last layer defers nothing (KTransformers, section 4.1)."""
        cost, shape = self.cost, self._shape
        attention, dense, shared = cost.attention(work), cost.dense(work), cost.shared(work)
        for layer in range(shape.layers):
            attended = self._reduced(work, layer, self._device(attention, layer, self.last))
            if layer < shape.dense_layers:
                last = self._device(dense, layer, attended)
            else:
                last = self._moe(work, layer, attended, shared)
            self.last = self._reduced(work, layer, last)
        self.last = self._device(cost.head(work), None, self.last)

    def add_passes(self) -> Pass:
        """All forward passes, the last of which is returned."""
        if self.cost.step_launch_s:
            self.last = self.graph.add("step", "other", "launch", self.cost.step_launch_s)
        for work in passes_of(self.cost.spec):
            self.add_pass(work)
        return work

    def add_training(self) -> None:
        """A forward pass, the loss, the same layers backward, and the optimiser."""
        cost, forth = self.cost, self.add_passes()
        back = replace(forth, back=True)
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

    def add_layer_call(self) -> None:
        """One call of the experts of a layer, and nothing else."""
        self.graph.add("experts", "experts", self.cost.host, self.cost.layer_alone_s())

    def _moe(self, work: Pass, layer: int, attended: int | None, shared: DeviceTask | None) -> int:
        """The experts' calls between the copies, the shared expert at its place, and the sum."""
        order, hand_over_s = self.cost.shared_order(work), self.cost.hand_over_s(work, layer)
        ready = self._device(shared, layer, attended) if shared and order == "before" else attended
        sent = self._copy("submit", layer, hand_over_s, ready)
        routed = self._routed(work, layer, sent)
        at_device = self.cost.device_experts(work, layer)
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
                self.cost.host,
                self.cost.routed_s(work, layer, *span),
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
        reduce = self.cost.all_reduce(work)
        return last if reduce is None else self._device(reduce, layer, last)

    def _device(self, task: DeviceTask, layer: int | None, *after: int | None) -> int:
        name = (task.name if layer is None else f"{task.name} {layer}") + self._suffix
        if task.launch_s:
            after = (self.graph.add(f"launch {name}", "launch", "launch", task.launch_s, *after, layer=layer),)
        return self.graph.add(name, task.kind, "device", task.seconds, *after, layer=layer)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedWorkload:
    """How a phase of workloads is simulated.

    `passes` are the forward passes of a step, `tasks` adds its tasks. `single_layer`: one call of the routed experts of
    one layer. `many_tokens`: whole prompts, for which the kernels are those of prefill; otherwise those of decode, and
    a step is replayed as a whole. `trains`: a pass goes back, and the roles take turns. `all_logits`: the output head
    is for all positions. `defers` says whether deferral and skipping have an effect. `parts` divides a step. `refuses`
    yields why a cell cannot be simulated, `notes` what its user should know. `judged_as` is the cell by which the rules
    of the engine judge it. `errors` names the errors that say how far off a simulated speed is with a GPU: of `users`'
    reports, or of `published` cells.
    """

    passes: Callable[[WorkloadSpec], tuple[Pass, ...]]
    tasks: Callable[[StepBuilder], object]
    single_layer: bool = False
    many_tokens: bool = False
    trains: bool = False
    all_logits: bool = False
    defers: Callable[[EngineSpec], bool] = lambda engine: False
    parts: Callable[[Graph, Execution], StepParts] | None = None
    refuses: Callable[[RunSpec], Iterator[Reason]] = lambda spec: iter(())
    notes: Callable[[RunSpec], Iterator[str]] = lambda spec: iter(())
    judged_as: Callable[[RunSpec], RunSpec] = lambda spec: spec
    errors: Literal["", "users", "published"] = ""

    @property
    def few_tokens(self) -> bool:
        """Whether a step is one pass of the kernels of decode."""
        return not (self.many_tokens or self.single_layer)


def _prompt_passes(work: WorkloadSpec) -> tuple[Pass, ...]:
    """One, or one for each chunk of the prompts, which begin without context."""
    chunk = work.chunk or work.prompt
    begins = range(0, work.prompt, chunk)
    return tuple(Pass(tokens=min(chunk, work.prompt - at), batch=work.batch, context=at) for at in begins)


def _training_parts(graph: Graph, execution: Execution) -> StepParts:
    """Forward, backward and optimiser; there are no losses, as nothing is computed."""
    names = [task.name for task in graph.tasks]
    forward_s, began_s = execution.end_s[names.index(LOSS)], execution.begin_s[names.index(OPTIMISER)]
    return StepParts(
        forward_s=forward_s,
        backward_s=began_s - forward_s,
        optimiser_s=execution.total_s - began_s,
        losses=(),
    )


def _training_reasons(spec: RunSpec) -> Iterator[Reason]:
    if not spec.engine.fused:
        yield Reason("workload.phase=train", "base is plain PEFT, which has no model of its costs, add +a, +v or +m")
    if spec.workload.examples is not None:
        yield Reason(f"workload.examples={spec.workload.examples}", "nothing is learned where steps are simulated")
    if spec.device_precision != "bf16":
        yield Reason(f"device_precision={spec.device_precision}", "all but the experts is trained through in bf16")


def _prefill_notes(spec: RunSpec) -> Iterator[str]:
    if spec.engine.cuda_graph and not spec.workload.has_whole_chunk:
        yield "+c changes nothing: a graph holds whole chunks of a prompt, set workload.chunk"


def _prefill_as(spec: RunSpec) -> RunSpec:
    """Without +c on whole prompts, for which the engine has no graph but the paper's breakdown (Fig. 14) has a row."""
    return spec if spec.workload.chunk else replace(spec, engine=replace(spec.engine, cuda_graph=False))


WORKLOADS: Mapping[Phase, SimulatedWorkload] = {
    "layer": SimulatedWorkload(
        passes=_prompt_passes,
        tasks=StepBuilder.add_layer_call,
        single_layer=True,
        # The experts of a single layer run on the host, with or without a GPU.
        judged_as=lambda spec: replace(spec, engine=replace(spec.engine, device="cpu")),
    ),
    "prefill": SimulatedWorkload(
        passes=_prompt_passes,
        tasks=StepBuilder.add_passes,
        many_tokens=True,
        defers=lambda engine: engine.defer_prefill,
        notes=_prefill_notes,
        judged_as=_prefill_as,
        errors="published",
    ),
    "decode": SimulatedWorkload(
        passes=lambda work: (Pass(tokens=1, batch=work.batch, context=work.prompt),),
        tasks=StepBuilder.add_passes,
        defers=lambda engine: True,
        errors="users",
    ),
    "train": SimulatedWorkload(
        passes=_prompt_passes,
        tasks=StepBuilder.add_training,
        many_tokens=True,
        trains=True,
        all_logits=True,
        parts=_training_parts,
        refuses=_training_reasons,
    ),
}


def workload_of(spec: RunSpec) -> SimulatedWorkload:
    """How the workload of a cell is simulated. Raises ValueError where it is not."""
    try:
        return WORKLOADS[spec.workload.phase]
    except KeyError:
        raise ValueError(f"workload.phase={spec.workload.phase}: is not simulated, leave out machine=") from None


def passes_of(spec: RunSpec) -> tuple[Pass, ...]:
    """The forward passes of a step."""
    return workload_of(spec).passes(spec.workload)


def build_graph(cost: CostModel) -> Graph:
    """The tasks of one step, as its workload adds them."""
    builder = StepBuilder(cost)
    workload_of(cost.spec).tasks(builder)
    return builder.graph
