"""The routed experts of one MoE layer alone, on copies of it that are used in turn so that weights come from memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ktbench.engine.backend import ExpertsBackend
from ktbench.engine.forms import ExpertFunctions
from ktbench.engine.observe import KeptOutputs, Observer, truth_of
from ktbench.engine.protocol import (
    ExpertsObservation,
    Inspected,
    NotComputed,
    Survey,
    Surveyed,
    Unsupported,
    configured,
    require,
)
from ktbench.engine.routing import Routing
from ktbench.engine.survey import ExpertsSurvey
from ktbench.engine.work import ExpertsWork, mean_work, pass_work
from ktbench.engine.workload.routing import layer_selections
from ktbench.spec.engine import EngineSpec
from ktbench.spec.peers import PeerSpec
from ktbench.spec.record import Work
from ktbench.spec.run_spec import ModelSpec, RunSpec, WorkloadSpec
from ktbench.spec.shape import MoEShape
from ktbench.spec.timeline import Timeline
from ktbench.spec.weights import Precision

# Numbers by which the tokens of one step are ahead of those of the step before: whole cache lines, and no row is one of
# another step at any width of a real model.
_AHEAD = 32 * 97


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStep:
    """One step: `hidden` [T, H] bf16, `gates` [T, k]; `ranks` [T, k] count the experts selected, from 0 to `active`."""

    hidden: Tensor
    gates: Tensor
    ranks: NDArray[np.int64]
    active: int


@dataclass(kw_only=True, slots=True)
class LayerTrace:
    """The steps of a workload and the memory [T, H] that their outputs go to.

    The tokens of all steps are windows into `numbers`. Where no operator reaches them, `own` holds the same for the
    workload itself, `drawn` for the round `drawn_for`, and `given` is which of them the steps have.
    """

    workload: WorkloadSpec
    steps: tuple[LayerStep, ...]
    numbers: Tensor
    own: Tensor
    drawn: Tensor
    given: Tensor
    output: Tensor
    drawn_for: int | None = None

    def renew(self, number: int | None) -> None:
        """All steps have the tokens of round `number`, or the workload's own (None)."""
        if number is not None and number != self.drawn_for:
            self.drawn.copy_(_normal(len(self.drawn), self.workload.seed, number + 1))  # a last 0 changes no seed
            self.drawn_for = number
        self.given = self.own if number is None else self.drawn
        self.numbers.copy_(self.given)

    def hidden(self, step: int) -> Tensor:
        """The tokens [T, H] of a step as they were drawn."""
        return _window(self.given, step, self.output.shape)


def _normal(count: int, *seed: int) -> Tensor:
    """What a norm before the experts gives, bf16 [count]."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(count, dtype=np.float32)).bfloat16()


def write_layer_trace(workload: WorkloadSpec, shape: MoEShape) -> LayerTrace:
    """Seeded steps, other tokens in each. Raises ValueError as `layer_selections`."""
    selections = layer_selections(workload, shape)
    size = torch.Size((workload.batch, shape.hidden))
    numbers = _normal(workload.batch * shape.hidden + _AHEAD * len(selections), workload.seed)
    steps = []
    for number, (ids, gates) in enumerate(selections):
        chosen, ranks = np.unique(ids, return_inverse=True)
        hidden, ranks = _window(numbers, number, size), ranks.reshape(ids.shape).astype(np.int64)
        steps.append(LayerStep(hidden=hidden, gates=torch.from_numpy(gates), ranks=ranks, active=len(chosen)))
    own = numbers.clone()
    return LayerTrace(
        workload=workload,
        steps=tuple(steps),
        numbers=numbers,
        own=own,
        drawn=torch.empty_like(numbers),
        given=own,
        output=torch.empty(size, dtype=torch.bfloat16),
    )


def _window(numbers: Tensor, step: int, size: torch.Size) -> Tensor:
    return numbers[_AHEAD * step :][: size.numel()].view(size)


Call = Callable[[], Tensor]


class BindableBackend(ExpertsBackend, Protocol):
    """A backend whose call can be prepared."""

    def bind(self, hidden: Tensor, routing: Routing, output: Tensor, /) -> Call:
        """The call on `hidden` [T, H], which gives [T, H]; `output` [T, H] is memory that it may write that to."""


class CacheColdReplicas:
    """The experts of one layer, held several times over in `precision`.

    Steps go through the copies in turn, and in each copy on through its experts: a step that needs `a` of them is given
    the next `a`. So no expert comes back before all others were read, give or take a step of each copy.
    """

    def __init__(self, backends: Sequence[BindableBackend], experts: int, precision: Precision = "bf16") -> None:
        if not backends:
            raise ValueError("a layer needs at least one copy")
        self.precision = precision
        self._backends, self._experts = backends, experts
        self._next = [0] * len(backends)
        self._steps = 0

    @property
    def count(self) -> int:
        """How often the layer is held."""
        return len(self._backends)

    def __getitem__(self, copy: int) -> BindableBackend:
        """Copy number `copy`."""
        return self._backends[copy]

    def take(self, ranks: NDArray[np.int64], active: int) -> tuple[BindableBackend, NDArray[np.int64]]:
        """The copy for the next step, and its experts in place of `ranks`, which count a step's from 0 to `active`."""
        copy = self._steps % len(self._backends)
        first = self._next[copy]
        self._steps += 1
        self._next[copy] = (first + active) % self._experts
        return self._backends[copy], (first + ranks) % self._experts


# Steps of the workload without end, on these copies: to try settings on. Each `next` runs one.
Trial = Callable[[CacheColdReplicas], Iterator[None]]


class LoadedLayer(Protocol):
    """One MoE layer in memory and what runs it: our engine or a peer."""

    def choose(self, spec: RunSpec, trial: Trial, /) -> CacheColdReplicas:
        """The copies that run from now on, set up as `spec` requests.

        Raises Unsupported, and ValueError for what was not kept at load or a thread count that is not available.
        """

    def counters(self) -> Mapping[str, int]:
        """See `System`; none unless a layer counts."""
        return {}

    def notes(self, spec: RunSpec, /) -> tuple[str, ...]:
        """See `System`, of a spec that was chosen before."""

    def close(self) -> None:
        """Release weights and threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A step with its experts settled, ready to run; `hidden` and `routing` are as they were drawn."""

    backend: BindableBackend
    hidden: Tensor
    routing: Routing
    call: Call


class LayerSystem(Inspected):
    """Implements `ktbench.engine.protocol.System` for decoder layer `number`, on any implementation of `LoadedLayer`.

    Made by `ktbench.engine.load_layer.load_layer` and the peers that run layers.
    """

    def __init__(self, model: ModelSpec, number: int, held: LoadedLayer) -> None:
        self.model, self._number, self._held = model, number, held
        self._replicas: CacheColdReplicas | None = None
        self._traces: dict[WorkloadSpec, LayerTrace] = {}
        self._trace: LayerTrace | None = None
        self._warm: set[tuple[WorkloadSpec, EngineSpec, PeerSpec]] = set()
        self._notes: tuple[str, ...] = ()
        self._steps: list[_Prepared] = []
        self._output = torch.empty(0)
        self._observed: tuple[ExpertsObservation, ExpertFunctions] | None = None
        self._done = self._observations = 0
        self._copies = KeptOutputs()
        self._surveys: dict[tuple[int, int], ExpertsSurvey] = {}
        self._survey: ExpertsSurvey | None = None

    def configure(self, spec: RunSpec) -> None:
        """See `System`. Raises Unsupported, and ValueError for an unavailable model, layout, thread count or trace."""
        require(spec, self.model)
        if spec.workload not in self._traces:
            self._traces[spec.workload] = write_layer_trace(spec.workload, self.model.shape)
        self._trace = self._traces[spec.workload]
        self._trace.renew(None)  # what runs before the trial must not meet the tokens of its round
        self._replicas = self._held.choose(spec, self._endless_steps)
        self._notes = self._held.notes(spec)
        key = (spec.workload, spec.engine, spec.peer)
        if key not in self._warm:
            self._run_every_copy()
            self._warm.add(key)
        self.start()

    def _endless_steps(self, copies: CacheColdReplicas) -> Iterator[None]:
        self._replicas = copies
        while True:
            self.start()
            for _ in self._steps:
                self.step()
                yield

    def _run_every_copy(self) -> None:
        """Operators make room for a workload in the first call of each copy, which no timed step should."""
        steps = self._endless_steps(self._replicas_in_turn)
        for _ in range(self._replicas_in_turn.count):
            next(steps)

    def start(self) -> None:
        """See `System`. Experts and copies continue where the steps before stopped: those are in the cache."""
        trace = self._traced
        trace.output.fill_(torch.nan)
        self._copies.clear()
        self._steps = [self._prepare(number, step) for number, step in enumerate(trace.steps)]
        self._done = 0

    def _prepare(self, number: int, step: LayerStep) -> _Prepared:
        backend, ids = self._replicas_in_turn.take(step.ranks, step.active)
        routing = Routing(ids=torch.from_numpy(ids), gates=step.gates)
        given = Routing(ids=routing.ids.clone(), gates=routing.gates.clone())
        call = backend.bind(step.hidden, given, self._traced.output)
        return _Prepared(backend=backend, hidden=self._traced.hidden(number), routing=routing, call=call)

    def renew(self, number: int | None) -> None:
        self._traced.renew(number)

    def step(self) -> None:
        """See `System`. Raises IndexError past the last step of the workload."""
        self._output = self._steps[self._done].call()
        self._done += 1

    def logits(self) -> NDArray[np.float32]:
        return self._output.float().numpy()

    def keep(self) -> None:
        self._copies.take(self._done - 1, self._output)

    def kept(self, step: int) -> NDArray[np.float32]:
        return configured(self._copies.of(step)).float().numpy()

    def observe(self, step: int | None = None, seed: int | None = None) -> tuple[ExpertsObservation, ...]:
        """See `System`. A step that was kept is not repeated: the copy of its output is what is observed."""
        self._observations += 1  # other tokens each time
        number = self._done - 1 if step is None else step
        prepared = self._steps[number]
        if not torch.equal(self._traced.steps[number].hidden, prepared.hidden):
            raise NotComputed("the operator has changed the tokens that it was given")
        copy = self._copies.of(number)
        if copy is None:
            self._traced.output.fill_(torch.nan)
            copy = prepared.call()
        self._output, self._done = copy, number + 1
        drawn = (self._traced.workload.seed, self._observations if seed is None else seed)
        observer = Observer(*drawn, most_experts=2 * self.model.shape.top_k)
        observer(self._number, prepared.hidden, prepared.routing, self._output)
        self._observed = observer.seen[0], prepared.backend.in_float32
        return tuple(observer.seen)

    def survey(self, seed: int, most: int) -> Survey:
        """See `Inspected`: each copy of the layer counts as a layer of its own."""
        key = self._traced.workload.batch, self._replicas_in_turn.count
        known = self._surveys.get(key)
        if known is None or not known.is_for(key[0], seed):
            known = ExpertsSurvey(self.model.shape, key[1], key[0], seed, most)
            self._surveys[key] = known
        self._survey = known
        return known.plan

    @torch.inference_mode()
    def meet(self, unit: tuple[int, int]) -> Surveyed:
        backend = self._replicas_in_turn[unit[0]]

        def run(hidden: Tensor, routing: Routing) -> Tensor:
            return backend.bind(hidden, routing, torch.full_like(hidden, torch.nan))()

        return configured(self._survey).meet(unit, self._number, run, backend.in_float32)

    def reference(self, observation: ExpertsObservation) -> NDArray[np.float32]:
        """See `System`. Raises ValueError for tokens that are not those of the last observation."""
        if self._observed is None or observation.hidden is not self._observed[0].hidden:
            raise ValueError("a layer has a reference for the tokens of its last observation alone")
        return truth_of(self._observed[1], observation)

    def timeline(self) -> Timeline:
        """See `System`. Raises Unsupported: a layer alone has no device role."""
        raise Unsupported("workload.phase=layer has the routed experts alone: there is no second role to draw")

    def chosen(self) -> Mapping[str, int]:
        return {}

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def counters(self) -> Mapping[str, int]:
        return self._held.counters()

    def work(self) -> Work:
        precision = self._replicas_in_turn.precision
        experts = ExpertsWork(shape=self.model.shape, precisions=((precision, precision),))
        ranked = [Routing(ids=torch.from_numpy(step.ranks), gates=step.gates) for step in self._traced.steps]
        return mean_work([pass_work(None, experts, [routing]) for routing in ranked])

    def close(self) -> None:
        self._traces, self._trace, self._steps = {}, None, []
        self._replicas = self._observed = None
        self._held.close()

    @property
    def _replicas_in_turn(self) -> CacheColdReplicas:
        return configured(self._replicas)

    @property
    def _traced(self) -> LayerTrace:
        return configured(self._trace)
